"""Rows that a test writes where no operation of the library leads to them, or only a long way.

Each function takes what runs a statement: ``stream.rows`` of a store's test, ``stream.run`` of a process test, or a
:class:`tests.support.looker.Looker`'s ``rows``.
"""

from __future__ import annotations

from collections.abc import Callable

Run = Callable[..., object]


def trim(run: Run, log_start: int, *, deleted: bool = True) -> None:
    """Let every partition begin at an offset.

    Args:
        run: runs a statement.
        log_start: the offset.
        deleted: without the messages before it, as retention leaves it in the end.
    """
    run("UPDATE ems_partition SET log_start = %s", log_start)
    if deleted:
        run("DELETE FROM ems_message WHERE `offset` > 0 AND `offset` < %s", log_start)


def lose(run: Run, *offsets: int) -> None:
    """Take messages away, as nothing of the library does: a hole, or what is claimed and not there."""
    for offset in offsets:
        run("DELETE FROM ems_message WHERE `offset` = %s", offset)


def age(run: Run, seconds: float) -> None:
    """Let every message have been born earlier."""
    run("UPDATE ems_message SET born_at = born_at - INTERVAL %s SECOND", seconds)


def set_cursor(run: Run, next_offset: int, group_id: int | None = None) -> None:
    """Move the cursors of a group, or of all, in every partition."""
    run("UPDATE ems_cursor SET next_offset = %s WHERE group_id = COALESCE(%s, group_id)", next_offset, group_id)


def add_claim(
    run: Run,
    group_id: int,
    lo: int,
    hi: int,
    *,
    claim_id: int = 4711,
    acked_to: int | None = None,
    state: str = "start",
    source: str = "stream",
    client_id: str | None = None,
    idle_s: float = 0.0,
    left_s: float = 0.0,
) -> None:
    """Write a claim of partition 0, whoever has it.

    Args:
        run: runs a statement.
        group_id: of the group.
        lo: its first offset.
        hi: its last one.
        claim_id: any.
        acked_to: how far it is; None: nothing of it is done.
        state: start, waiting or done.
        source: stream or retry.
        client_id: the owner's.
        idle_s: seconds since it was claimed and last moved.
        left_s: seconds until its deadline.
    """
    run(
        "INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, client_id, "
        "claimed_at, progress_at, deadline_at) VALUES (%s, 0, %s, %s, %s, %s, %s, %s, %s, "
        "UTC_TIMESTAMP(6) - INTERVAL %s SECOND, UTC_TIMESTAMP(6) - INTERVAL %s SECOND, UTC_TIMESTAMP(6) + INTERVAL %s SECOND)",
        *(group_id, lo, claim_id, hi, lo - 1 if acked_to is None else acked_to, state, source, client_id),
        *(idle_s, idle_s, left_s),
    )


def add_retry(run: Run, group_id: int, offset: int, *, attempt: int = 1, isolation: int = 0) -> None:
    """Write a retry of partition 0 that is due."""
    run(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, isolation) "
        "VALUES (%s, 0, %s, %s, UTC_TIMESTAMP(6), %s)",
        *(group_id, offset, attempt, isolation),
    )


def add_dead(run: Run, group_id: int, offset: int, *, task: str = "", error_type: str = "", reason: str = "") -> None:
    """Write the dead letter of a message of partition 0."""
    run(
        "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, `key`, tag, headers, body, born_at, producer_id, "
        "dead_at, attempts, task, error_type, reason, error) SELECT g.id, m.`partition`, m.`offset`, m.uid, m.`key`, "
        "m.tag, m.headers, m.body, m.born_at, m.producer_id, UTC_TIMESTAMP(6), 3, %s, %s, %s, %s "
        "FROM ems_message m JOIN ems_group g ON g.topic_id = m.topic_id "
        "WHERE g.id = %s AND m.`partition` = 0 AND m.`offset` = %s",
        *(task, error_type, reason, f"{error_type}: {reason}", group_id, offset),
    )


def make_overdue(run: Run) -> None:
    """Let the deadline of every claim pass."""
    run("UPDATE ems_claim SET deadline_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")


def hold_back(run: Run, seconds: float | None) -> None:
    """Let waiting claims wait for so many seconds more; None: no longer."""
    run("UPDATE ems_claim SET not_before = UTC_TIMESTAMP(6) + INTERVAL %s SECOND WHERE state = 'waiting'", seconds)


def run_out(run: Run, client_id: str) -> None:
    """Let a client's lease run out, just now: longer ago, and a server that has just started may not have been there."""
    run(
        "UPDATE ems_client SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1000 MICROSECOND WHERE client_id = %s",
        client_id,
    )


def make_due(run: Run) -> None:
    """Let the time of every retry come."""
    run("UPDATE ems_retry SET due_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
