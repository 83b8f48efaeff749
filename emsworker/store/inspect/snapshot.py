"""Snapshot of all tables of a stream, for the checker of histories; and KILL of connections.

The snapshot reads whole tables, which nothing else in EMS does: it is for streams under test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from emsworker.core.errors import ConnectionLost
from emsworker.core.ids import uid_text
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Statements

_SQL = Statements(__name__)
_PAGE = 20_000
_NO_SUCH_THREAD = 1094

Place = tuple[int, int, int]  # of a group: group, partition, offset


class GroupRow(NamedTuple):
    """A group: its topic, its order, and the seconds for which a message may run."""

    topic_id: int
    name: str
    order: str
    timeout_s: float


class ClaimSnapshot(NamedTuple):
    """A claim as recorded in the log."""

    group_id: int
    partition: int
    lo: int
    hi: int
    acked_to: int
    state: str
    source: str
    client_id: str | None


@dataclass
class Snapshot:
    """The stream at one moment.

    Attributes:
        topics: names by id; groups: by id.
        messages: by topic and partition, for each offset the uid (``None`` for a tombstone) and the kind.
        log_starts: by topic and partition; cursors: by group and partition.
        retries, dead, given_up: places of groups; attempted: places with a recorded attempt.
        skips: group, partition, first and last offset of ranges that a group never runs.
        pending: topic and uid of messages in the outbox.
        clients: seconds since the lease of each client expired (negative if it has not).
    """

    topics: dict[int, str] = field(default_factory=dict)
    groups: dict[int, GroupRow] = field(default_factory=dict)
    messages: dict[tuple[int, int], dict[int, tuple[str | None, str]]] = field(default_factory=dict)
    log_starts: dict[tuple[int, int], int] = field(default_factory=dict)
    cursors: dict[tuple[int, int], int] = field(default_factory=dict)
    claims: list[ClaimSnapshot] = field(default_factory=list)
    retries: set[Place] = field(default_factory=set)
    dead: set[Place] = field(default_factory=set)
    given_up: set[Place] = field(default_factory=set)
    attempted: set[Place] = field(default_factory=set)
    skips: list[tuple[int, int, int, int]] = field(default_factory=list)
    pending: set[tuple[int, str]] = field(default_factory=set)
    clients: dict[str, float] = field(default_factory=dict)


def read_snapshot(session: Session) -> Snapshot:
    """Read everything in one snapshot."""
    session.execute(_SQL.begin)
    session.execute(_SQL.start)
    try:
        return _read(session)
    finally:
        session.rollback()


def _read(session: Session) -> Snapshot:
    topics = dict(session.rows(_SQL.list_topics))
    log_starts = {(row[0], row[1]): row[2] for row in session.rows(_SQL.list_log_starts) if row[0] in topics}
    attempts = session.rows(_SQL.list_attempts)
    rows = (row for row in session.rows(_SQL.list_groups) if row[1] in topics)
    groups = {row[0]: GroupRow(row[1], row[2], row[3], row[4] / 1000) for row in rows}
    return Snapshot(
        topics=topics,
        groups=groups,
        messages={place: dict(_messages(session, *place)) for place in log_starts},
        log_starts=log_starts,
        cursors={(row[0], row[1]): row[2] for row in session.rows(_SQL.list_cursors)},
        # The claims of a group that is being deleted are deleted after its name.
        claims=[ClaimSnapshot(*row) for row in session.rows(_SQL.list_claims) if row[0] in groups],
        retries=_places(session.rows(_SQL.list_retries)),
        dead=_places(session.rows(_SQL.list_dead)),
        given_up={row[:3] for row in attempts if row[3]},
        attempted={row[:3] for row in attempts},
        skips=[(row[0], row[1], row[2], row[3]) for row in session.rows(_SQL.list_skips)],
        pending={(row[0], uid_text(row[1])) for row in session.rows(_SQL.list_outbox)},
        clients={row[0]: float(row[1]) for row in session.rows(_SQL.list_clients)},
    )


def _places(rows: tuple[tuple[Any, ...], ...]) -> set[Place]:
    return {(row[0], row[1], row[2]) for row in rows}


def _messages(session: Session, topic_id: int, partition: int) -> Iterator[tuple[int, tuple[str | None, str]]]:
    from_offset = 0
    while True:
        where = {"topic_id": topic_id, "partition": partition, "from_offset": from_offset, "limit": _PAGE}
        rows = session.rows(_SQL.read_places, where)
        for offset, uid, kind in rows:
            yield offset, (uid_text(uid) if uid else None, kind)
        if len(rows) < _PAGE:
            return
        from_offset = rows[-1][0] + 1


def list_connections(session: Session) -> list[int]:
    """List the other connections of this user to this database."""
    return [int(row[0]) for row in session.rows(_SQL.list_connections)]


def kill_connection(session: Session, number: int) -> bool:
    """Kill a connection, whatever it is doing; returns false if it has already ended."""
    try:
        session.execute(_SQL.kill, {"id": number})
    except ConnectionLost as error:  # or it was this session's own, reopened under an old number
        return error.__cause__ is None or code_of(error.__cause__) != _NO_SUCH_THREAD
    return True
