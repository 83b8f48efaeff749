"""Names of tables as they are written on connections that may be in another database."""


def qualified(database: str, table: str) -> str:
    """A table with its database, quoted."""
    return f"`{database.replace('`', '``')}`.{table}"
