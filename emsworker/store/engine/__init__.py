"""The engine room of the store: connections, sessions, packets, the schema, privileges."""
