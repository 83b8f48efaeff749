"""The stream itself: topics, messages, the outbox, retention, bulk reads and writes."""
