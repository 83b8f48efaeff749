"""Archiving: jobs that copy, verify, delete, replay and restore messages."""
