"""Consuming: claims of messages, the runs of their handlers, and their acks. It knows no app and no process."""
