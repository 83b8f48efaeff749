"""Selection of messages: filters of groups, and the predicate language."""
