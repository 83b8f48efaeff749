"""The tables of a stream with those of every extension, for tests."""

from __future__ import annotations

from emsworker.core.extension import extensions
from emsworker.store.engine import schema
from emsworker.store.engine.session import Session


def migrate(session: Session) -> list[int]:
    """Make all tables; return the versions of the core that were applied."""
    return schema.migrate(session, extensions().values())
