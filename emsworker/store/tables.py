"""Names as they are written on connections that may be in another database."""


def quoted(name: str) -> str:
    """A name of a database, quoted."""
    return f"`{name.replace('`', '``')}`"


def qualified(database: str, table: str) -> str:
    """A table with its database, quoted."""
    return f"{quoted(database)}.{table}"
