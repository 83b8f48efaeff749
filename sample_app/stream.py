"""What the stream itself says, asked in plain SQL: an account that does not depend on the library's own.

Several servers are asked one after another, those whose messages cause others first: what the first has finished, and
has forwarded, is on the others when they are asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sample_app.tables import Connection, query_all

# One statement is one snapshot of a server: a message on its way from one group to the next topic is seen on one side.
_READ_GROUPS = """SELECT t.name, g.name, SUM(c.next_offset - 1),
  SUM(COALESCE((SELECT m.`offset` FROM ems_message m WHERE m.topic_id = t.id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0)),
  (SELECT COUNT(*) FROM ems_claim k WHERE k.group_id = g.id AND k.state IN ('start', 'waiting')),
  (SELECT COUNT(*) FROM ems_retry r WHERE r.group_id = g.id),
  (SELECT COUNT(*) FROM ems_outbox p JOIN ems_topic o ON o.id = p.topic_id WHERE p.topic_id = t.id OR o.server <> '')
FROM ems_topic t JOIN ems_group g ON g.topic_id = t.id JOIN ems_cursor c ON c.group_id = g.id
GROUP BY t.id, t.name, g.id, g.name"""
_READ_UIDS = """SELECT m.uid FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id
WHERE t.name = %s AND m.kind = 'message'"""
_READ_DEAD = """SELECT g.name, d.uid, d.reason FROM ems_dead d JOIN ems_group g ON g.id = d.group_id"""
_COUNT_CLIENTS = """SELECT COUNT(*) FROM ems_client"""
_COUNT_CLIENTS_OF = """SELECT COUNT(*) FROM ems_client WHERE name = %s"""
_COUNT_CLAIMS_OF = """SELECT COUNT(*) FROM ems_claim c JOIN ems_client l ON l.client_id = c.client_id
WHERE l.name = %s AND c.state = 'start'"""


@dataclass(frozen=True)
class GroupState:
    """Where one group stands.

    Args:
        handed_out: how many messages its cursors have passed.
        messages: how many there are, tombstones included.
        claims: how many claims are not finished.
        retries: how many messages wait for another attempt.
        delayed: how many messages of the topic are not due yet, or of any topic not forwarded to its server yet.
    """

    topic: str
    group: str
    handed_out: int
    messages: int
    claims: int
    retries: int
    delayed: int

    @property
    def finished(self) -> bool:
        """Whether its lag is zero, with nothing still in somebody's hands."""
        return self.handed_out == self.messages and not (self.claims or self.retries or self.delayed)


def read_groups(connections: Sequence[Connection]) -> list[GroupState]:
    """The state of every group at one moment."""
    return [GroupState(row[0], row[1], *map(int, row[2:])) for row in query_all(connections, _READ_GROUPS)]


def finished(groups: Sequence[GroupState]) -> bool:
    """Whether all groups have finished."""
    return bool(groups) and all(group.finished for group in groups)


def handed_out(groups: Sequence[GroupState]) -> int:
    """How many messages have been given out, counted once for each group."""
    return sum(group.handed_out for group in groups)


def read_uids(connections: Sequence[Connection], topic: str) -> list[str]:
    """The ids of all messages of a topic."""
    return [str(UUID(bytes=uid)) for (uid,) in query_all(connections, _READ_UIDS, (topic,))]


def read_dead(connections: Sequence[Connection]) -> list[str]:
    """Every dead letter: its group, its message's id, and the reason."""
    return [f"{group} {UUID(bytes=uid)}: {reason}" for group, uid, reason in query_all(connections, _READ_DEAD)]


def count_clients(connections: Sequence[Connection], worker: str | None = None) -> int:
    """How many client rows there are, of one worker or of all."""
    one = worker is not None
    counts = query_all(connections, _COUNT_CLIENTS_OF if one else _COUNT_CLIENTS, (worker,) if one else ())
    return sum(count for (count,) in counts)


def count_claims_of(connections: Sequence[Connection], worker: str) -> int:
    """How many claims a worker's clients hold."""
    return sum(count for (count,) in query_all(connections, _COUNT_CLAIMS_OF, (worker,)))
