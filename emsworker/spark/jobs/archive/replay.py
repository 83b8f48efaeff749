"""The job ``replay``: one group runs archived messages again, in order; other groups are not affected.

The messages return to their old offsets below the log start offset, and are deleted when the group has run them
(:mod:`emsworker.store.groups.putback`). For messages that retention has not deleted yet, use ``ems groups replay``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any
from uuid import UUID

from emsworker.arrow.profile import call, closing_session, open_stream
from emsworker.extending.database import Session, server_facts
from emsworker.extending.stream import PutBack, Row, putback, topics
from emsworker.extending.values import Group, Order, counted, in_batches
from emsworker.spark.jobs.archive.choosing import Chosen, choose, find, job_name
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.session import prepared

_ROWS, _BYTES, _SLACK = 500, 4 << 20, 65536


@dataclass(frozen=True, kw_only=True)
class ReplayOptions(Chosen):
    """Options of ``ems pipeline replay``."""

    group: str = option(help="The group of the topic that runs them again.", metavar="NAME")


def run(spark: Any, config: ReplayOptions) -> JobResult:
    """Put the chosen messages back for the group.

    Raises:
        WrongOption: a given topic or group does not exist, or cannot be replayed.
        ArchiveDamaged: the archive cannot be read.
        UnknownGroup: the group was deleted meanwhile.
    """
    spark = prepared(spark)
    folder, manifests = find(spark, config)
    group = call(config.profile, lambda session: _group(session, config))
    of_this = [one for one in manifests if one.topic_id == group.topic_id]
    if not of_this:
        fix = f"it was deleted since, and the one of that name is another; use restore --to {config.topic}"
        raise WrongOption("--topic", config.topic, fix)
    chosen = choose(spark, folder, of_this, config)
    name = job_name("replay", config, of_this, f"{config.topic}/{config.group}")
    summary = {"topic": config.topic, "group": config.group, "job_id": name}
    if config.dry_run:
        return JobResult({**summary, "messages": chosen.count()})
    messages, done = _replay(chosen, config, group, name)
    counts = asdict(done)
    return JobResult({**summary, "messages": messages, "earlier": messages - sum(counts.values()), **counts})


def _group(session: Session, config: ReplayOptions) -> Group:
    topic = topics.get_topic(session, config.topic)
    if topic is None:
        raise WrongOption(
            "--topic", config.topic, "it is archived, but the stream has it no more; use restore --to NAME"
        )
    group = topics.get_group(session, topic, config.group)
    if group is None:
        raise WrongOption("--group", config.group, f"topic {config.topic!r} has no such group; see `ems groups list`")
    if group.order is Order.PARTITION:
        fix = "it runs a partition strictly in order, and retries would not be; restore into a topic of its own"
        raise WrongOption("--group", config.group, fix)
    return group


def _replay(chosen: Any, config: ReplayOptions, group: Group, name: str) -> tuple[int, PutBack]:
    """Return the number of chosen messages, and what this run of the job has done with its part of them."""
    total, messages = PutBack(), 0
    labels = ("partition", "offset", "uid", "key", "tag", "rawHeaders", "value")
    columns = (*labels, "unix_micros(timestamp) AS us", "producer")
    with closing_session(open_stream(config.profile).stream.database) as database:
        done = database.call(lambda session: putback.steps_done(session, name))
        if done:
            config.progress(f"going on with job {name} after {counted(done, 'step')}")
        most = min(_BYTES, database.call(server_facts).max_allowed_packet - _SLACK)
        rows = chosen.selectExpr(*columns).toLocalIterator(prefetchPartitions=True)
        for step, (partition, batch) in enumerate(_batches(rows, most)):
            messages += len(batch)
            if step >= done:
                total += database.call(
                    partial(putback.put_back, group=group, partition=partition, rows=batch, job=name, step=step)
                )
                config.progress(f"{config.topic}/{partition}: up to offset {batch[-1].offset}, {total.again} put back")
    return messages, total


def _batches(rows: Iterator[Any], most_bytes: int) -> Iterator[tuple[int, list[Row]]]:
    """Split rows into batches of one partition each, deterministically."""
    for partition, of_partition in groupby(rows, lambda row: int(row.partition)):
        for batch in in_batches(map(_row, of_partition), lambda row: row.weight, most_bytes, most=_ROWS):
            yield partition, batch


def _row(row: Any) -> Row:
    _, offset, uid, key, tag, headers, body, us, producer = row
    labels = (None if key is None else bytes(key), None if tag is None else bytes(tag))
    return Row(offset, UUID(uid).bytes, *labels, bytes(headers), bytes(body), us, producer)


JOB = Job("replay", ReplayOptions, run, role="admin")
