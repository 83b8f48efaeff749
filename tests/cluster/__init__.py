"""Three nodes that are one database: Group Replication and Galera."""
