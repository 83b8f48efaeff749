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
# The message of a flow that has failed becomes a dead letter, which names the flow; its own id is random.
_READ_DEAD = """SELECT g.name, d.uid, d.reason FROM ems_dead d JOIN ems_group g ON g.id = d.group_id
WHERE d.reason NOT LIKE 'flow %%'"""
_READ_DEAD_FLOWS = """SELECT reason FROM ems_dead WHERE reason LIKE 'flow %%'"""
_COUNT_OPEN_FLOWS = """SELECT COUNT(*) FROM ems_flow WHERE ended_at IS NULL"""
_READ_UNDONE = """SELECT s.name, e.value FROM ems_flow f JOIN ems_flow_step s ON s.flow_id = f.id
JOIN ems_flow_end e ON e.flow_id = s.flow_id AND e.step = s.step
WHERE f.`key` = %s AND s.kind = 'undone' ORDER BY s.step"""
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
    """Every dead letter but those of flows: its group, its message's id, and the reason."""
    return [f"{group} {UUID(bytes=uid)}: {reason}" for group, uid, reason in query_all(connections, _READ_DEAD)]


def read_dead_flows(connections: Sequence[Connection]) -> list[str]:
    """The reason of the dead letter of each flow that has failed."""
    return [reason for (reason,) in query_all(connections, _READ_DEAD_FLOWS)]


def count_open_flows(connections: Sequence[Connection]) -> int:
    """How many flows have not ended."""
    return sum(count for (count,) in query_all(connections, _COUNT_OPEN_FLOWS))


def read_undone(connections: Sequence[Connection], flow: str) -> list[str]:
    """The calls that have undone the steps of a flow, one after another, each with what it has returned."""
    rows = enumerate(query_all(connections, _READ_UNDONE, (flow,)), 1)
    return [f"{number}. {name.partition(': ')[2]} took back {value.decode()}" for number, (name, value) in rows]


def count_clients(connections: Sequence[Connection], worker: str | None = None) -> int:
    """How many client rows there are, of one worker or of all."""
    one = worker is not None
    counts = query_all(connections, _COUNT_CLIENTS_OF if one else _COUNT_CLIENTS, (worker,) if one else ())
    return sum(count for (count,) in counts)


def count_claims_of(connections: Sequence[Connection], worker: str) -> int:
    """How many claims a worker's clients hold."""
    return sum(count for (count,) in query_all(connections, _COUNT_CLAIMS_OF, (worker,)))
