"""Declarations of an app: tasks, subscriptions, periodic tasks, broadcasts, limits, and options of handlers."""
