"""Quoted and qualified names, for connections that may use another database."""


def quoted(name: str) -> str:
    """Return the name of a database, quoted."""
    return f"`{name.replace('`', '``')}`"


def qualified(database: str, table: str) -> str:
    """Return the name of a table with its database, quoted."""
    return f"{quoted(database)}.{table}"
