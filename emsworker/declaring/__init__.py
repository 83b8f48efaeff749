"""What an app declares: tasks, subscriptions, periodic tasks, broadcasts, limits, and how a handler is run."""
