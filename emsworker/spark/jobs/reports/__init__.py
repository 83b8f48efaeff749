"""Reports on groups, topics and messages."""
