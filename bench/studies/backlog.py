"""Large backlogs: a message that was sent, copied by the server; and how fast workers drain them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from bench import worker
from bench.stage import NotRight, Stage

_WAIT_S = 900.0
_COPY = """INSERT INTO ems_message
(topic_id, `partition`, `offset`, uid, `key`, tag, headers, body, size, born_at, producer_id)
SELECT topic_id, %s, %s + `offset` - %s, UNHEX(LPAD(HEX(%s * 1000000000 + %s + `offset` - %s), 32, '0')), `key`, tag,
headers, body, size, born_at, producer_id FROM ems_message
WHERE topic_id = %s AND `partition` = %s AND `offset` > %s AND `offset` <= %s ORDER BY `offset`"""
_CHUNK = 100_000


def extend(stage: Stage, topic_id: int, count: int, partition: int = 0, source: int = 0) -> tuple[int, int]:
    """Make a partition so many messages longer, with copies of what a partition has.

    Args:
        topic_id: of a topic with at least one message.
        count: of messages.
        partition: that gets longer.
        source: that has the message.

    Returns:
        The first and the last new offset.
    """
    top = "SELECT COALESCE(MAX(`offset`), 0) FROM ems_message WHERE topic_id = %s AND `partition` = %s"
    with stage.connect() as connection, connection.cursor() as cursor:
        cursor.execute(top, (topic_id, partition))
        before = end = int((cursor.fetchone() or (0,))[0])
        cursor.execute(top, (topic_id, source))
        have = int((cursor.fetchone() or (0,))[0])
        if not have:
            raise NotRight(f"topic {topic_id} has no message to copy")
        while end < before + count:
            some = min(before + count - end, have, _CHUNK)
            start = have - some
            cursor.execute(_COPY, (partition, end, start, partition, end, start, topic_id, source, start, have))
            end += some
            have = end if partition == source else have
        cursor.execute(
            "UPDATE ems_partition SET next_offset = %s WHERE topic_id = %s AND `partition` = %s",
            (end + 1, topic_id, partition),
        )
    return before + 1, end


def wait_done(stage: Stage, first: int, count: int, groups: int = 1) -> float:
    """Wait until every group has done so many messages from an offset on; returns messages a second.

    From the first claim to the last acked offset by the server's clock.

    Raises:
        NotRight: it takes longer than 15 minutes, or more was done than there is.
    """
    query = (
        "SELECT COALESCE(SUM(acked_to + 1 - GREATEST(lo, %s)), 0) FROM ems_claim "
        "WHERE acked_to >= %s AND state = 'done'"
    )
    until = time.monotonic() + _WAIT_S
    with stage.connect() as connection, connection.cursor() as cursor:
        done = -1
        while done < count * groups:
            if time.monotonic() > until:
                raise NotRight(f"only {done} of {count * groups} messages were done within {_WAIT_S:g} s")
            time.sleep(0.1)
            cursor.execute(query, (first, first))
            done = int((cursor.fetchone() or (0,))[0])
        if done != count * groups:
            raise NotRight(f"{done} messages were done, there are {count * groups}")
        cursor.execute(
            "SELECT TIMESTAMPDIFF(MICROSECOND, MIN(claimed_at), MAX(progress_at)) FROM ems_claim WHERE hi >= %s",
            (first,),
        )
        took = int((cursor.fetchone() or (0,))[0])
    for table in ("ems_retry", "ems_dead"):
        stage.check(table, 0, f"SELECT COUNT(*) FROM {table}")
    return count * groups / (took / 1e6)


def drain(
    stage: Stage,
    topic_id: int,
    count: int,
    shape: worker.Shape,
    beside: Callable[[subprocess.Popen[bytes]], AbstractContextManager[None]] | None = None,
) -> float:
    """Make a backlog for a topic that is drained up to its end, and have workers drain it.

    Args:
        shape: of the worker, that takes only this topic.
        beside: what else is done from when the worker is ready until it has drained the topic; called with its process.

    Returns:
        messages per second.
    """
    first, _ = extend(stage, topic_id, count)
    with worker.running(stage, shape) as process, nullcontext() if beside is None else beside(process):
        return wait_done(stage, first, count)
