"""The threads that find, claim and acknowledge work."""
