"""Facilities of a process: threads, forks, signals and the local clock."""
