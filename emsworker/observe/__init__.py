"""Observation of a process: its metrics, its logs, and the HTTP of its probes."""
