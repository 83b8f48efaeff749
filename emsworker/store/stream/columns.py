"""The columns of a message, for statements: ``{message_columns}``, and those of a table with an alias.

``{body_size}`` are the bytes of the body, wherever that is kept.
``{p_plain_columns}`` and ``{m_plain_columns}`` are its body, key, tag, headers and uid in ``ems_publish``.
"""

from __future__ import annotations

from emsworker.core.model import MESSAGE_COLUMNS
from emsworker.store.engine.sql import identifier

MESSAGE = {
    f"{alias}message_columns": ", ".join(f"{alias.replace('_', '.')}{identifier(one)}" for one in MESSAGE_COLUMNS)
    for alias in ("", "d_", "m_", "p_")
}
"""The lists of columns; see :class:`emsworker.store.engine.sql.Statements`."""

# Of a body that is kept beside its message the reference begins with the size; see total_size of ems_message.
_SIZE = (
    """IF(LEFT({0}body, 14) = '{{"ems-large":"' """
    "AND CONVERT(SUBSTRING({0}body, 15, 8) USING latin1) REGEXP '^[0-9a-f]+$', "
    "GREATEST(LENGTH({0}body), LEAST(CAST(CONV(SUBSTRING({0}body, 15, 8), 16, 10) AS UNSIGNED), 1073741824)), "
    "LENGTH({0}body))"
)
MESSAGE |= {f"{alias}body_size": _SIZE.format(alias.replace("_", ".")) for alias in ("", "d_", "p_")}
"""The bytes of a body, wherever it is kept."""

# What is no UTF-8 is kept as the hexadecimal digits of its first 32 KiB, or not at all.
_PLAIN = (
    "IF(COALESCE(CAST(CONVERT({0}.body USING utf8mb4) AS BINARY) = {0}.body, 0), CONVERT({0}.body USING utf8mb4), "
    "HEX(LEFT({0}.body, 32768))), CONVERT({0}.`key` USING utf8mb4), CONVERT({0}.tag USING utf8mb4), "
    "IF(LENGTH({0}.headers) BETWEEN 1 AND 65535, CONVERT({0}.headers USING utf8mb4), NULL), HEX({0}.uid)"
)
PLAIN = {f"{alias}_plain_columns": _PLAIN.format(alias) for alias in ("m", "p")}
