"""The rows."""

from emsworker.extending.database import Session, Statements
from emsworker.extending.stream import get_topic

_SQL = Statements(__name__)


def add(session: Session, topic: str, text: str, keep_s: float) -> None:
    """Leave a note."""
    session.execute(_SQL.add, {"topic_id": get_topic(session, topic).id, "text": text, "keep_s": keep_s})


def latest(session: Session) -> list[dict[str, str]]:
    """Return the latest notes."""
    return [{"topic": topic, "text": text} for topic, text in session.rows(_SQL["list"])]


def count_late(session: Session, late_s: float) -> int:
    """Return the number of notes that expired at least so many seconds ago."""
    return int(session.rows(_SQL.count_late, {"late_s": late_s})[0][0])


def sweep(session: Session, limit: int) -> int:
    """Delete what has expired; return the number of rows."""
    return session.execute(_SQL.sweep, {"limit": limit})
