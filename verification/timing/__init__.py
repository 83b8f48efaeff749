"""Promises of seconds and of rates, under load and with workers and servers that are killed."""
