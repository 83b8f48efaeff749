"""No models; Django tells only apps with this module that it has migrated a database."""
