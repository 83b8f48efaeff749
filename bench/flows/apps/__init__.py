"""The same flows on each system: a program that answers lines of JSON with the seconds that each took."""
