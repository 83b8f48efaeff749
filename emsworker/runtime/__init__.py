"""The processes: supervisor, worker children and their threads, beat."""
