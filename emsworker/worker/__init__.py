"""The worker: its processes, and the threads that find and claim work."""
