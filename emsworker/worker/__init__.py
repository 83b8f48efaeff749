"""The worker: processes, the threads that claim messages, and the runs of their handlers."""
