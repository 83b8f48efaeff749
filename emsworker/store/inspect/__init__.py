"""Read-only views across the aggregates, for monitoring, checks and traces."""
