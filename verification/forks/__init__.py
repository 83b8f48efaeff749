"""Processes that fork while their threads send."""
