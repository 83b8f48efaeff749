"""Alerts on groups, kept as state in Structured Streaming."""
