"""The columns of a message, for statements: ``{message_columns}``, and those of a table with an alias."""

from __future__ import annotations

from emsworker.core.model import MESSAGE_COLUMNS
from emsworker.store.engine.sql import identifier

MESSAGE = {
    f"{alias}message_columns": ", ".join(f"{alias.replace('_', '.')}{identifier(one)}" for one in MESSAGE_COLUMNS)
    for alias in ("", "d_", "m_", "p_")
}
"""The lists of columns; see :class:`emsworker.store.engine.sql.Statements`."""
