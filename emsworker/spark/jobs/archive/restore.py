"""The job ``restore``: sends archived messages into a topic, in order, with headers that name their origin.

The job is idempotent: each message is sent once even if the job is killed and run again, because it writes through the
sink of ``format("ems")`` under a name made from its options. To send the same messages again, give another ``--job``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from emsworker.arrow.profile import call
from emsworker.extending.errors import DecodeError, EmsError
from emsworker.extending.stream import topics
from emsworker.extending.values import counted
from emsworker.spark import staging
from emsworker.spark.jobs.archive.choosing import Chosen, choose, find, job_name
from emsworker.spark.jobs.job import Job, JobResult, WrongOption, option
from emsworker.spark.jobs.session import prepared
from emsworker.spark.staging import SinkBatch

RESTORED_FROM, RESTORED_ID, RESTORED_BORN = "ems-restored-from", "ems-restored-id", "ems-restored-born"


class NotRestorable(EmsError):
    """The headers of an archived message cannot be decoded."""


@dataclass(frozen=True, kw_only=True)
class RestoreOptions(Chosen):
    """Options of ``ems pipeline restore``."""

    to: str = option(help="The topic that gets them; it must be there.", metavar="NAME")
    keep_partitions: bool = option(False, help="Each goes to the partition of the number that it came from.")


def run(spark: Any, config: RestoreOptions) -> JobResult:
    """Send the chosen messages.

    Raises:
        WrongOption: a given topic or partition does not exist.
        ArchiveDamaged, NotRestorable: the archive cannot be read.
    """
    spark = prepared(spark)
    folder, manifests = find(spark, config)
    target = call(config.profile, lambda session: topics.get_topic(session, config.to))
    if target is None:
        raise WrongOption("--to", config.to, f"there is no such topic; `ems topics create {config.to}` makes one")
    chosen = choose(spark, folder, manifests, config)
    found = chosen.groupBy("partition").count().orderBy("partition").collect()
    missing = sorted({row.partition for row in found} - set(target.partition_numbers()))
    if config.keep_partitions and missing:
        fix = f"topic {config.to!r} has no partition {missing[0]}; give it more, or leave this out"
        raise WrongOption("--keep-partitions", "given", fix)
    name = job_name("restore", config, manifests, config.to)
    total = sum(row["count"] for row in found)
    summary = {"topic": config.topic, "to": config.to, "messages": total, "job_id": name, "already_done": False}
    if config.dry_run:
        return JobResult(summary)
    state = call(config.profile, partial(staging.state, batch=SinkBatch(f"job:{name}")))
    if state is not None and state[0] == "done":
        config.progress(f"job {name} is done already; give another --job to send the messages once more")
        return JobResult({**summary, "already_done": True})
    config.progress(f"sending {counted(total, 'message')} of {config.topic} to {config.to}")
    rows = _rows(chosen, config.keep_partitions)
    writer = rows.write.format("ems").options(topic=config.to, autoCreate=True)
    if config.profile is not None:
        writer = writer.option("profile", config.profile)
    writer.option("jobId", name).mode("append").save()
    return JobResult(summary)


def _rows(chosen: Any, keep_partitions: bool) -> Any:
    """Return the rows with the columns that the sink takes."""
    columns = "key binary, value binary, tag binary, rawHeaders binary"  # the priority is among the headers
    if keep_partitions:
        columns += ", partition int"
    names = [one.split()[0] for one in columns.split(", ")]

    def mark(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield _marked(batch, names)

    return chosen.mapInArrow(mark, columns)


def _marked(batch: Any, names: list[str]) -> Any:
    import pyarrow as pa

    columns = {name: batch.column(name) for name in names}
    told = ("rawHeaders", "topic", "partition", "offset", "uid", "timestamp")
    blocks = [_headers(*values) for values in zip(*(batch.column(name).to_pylist() for name in told), strict=True)]
    columns["rawHeaders"] = pa.array(blocks, pa.binary())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=names)


def _headers(raw: bytes, topic: str, partition: int, offset: int, uid: str, born: Any) -> bytes:
    from emsworker.extending.values import decode_headers, encode_headers

    place = f"{topic}/{partition}/{offset}"
    try:
        headers = decode_headers(raw)
    except DecodeError as error:
        raise NotRestorable(f"message {place}: {error}; leave it out with --where 'offset <> {offset}'") from None
    marks = {RESTORED_FROM: place, RESTORED_ID: uid, RESTORED_BORN: born.isoformat()}
    return encode_headers({**headers, **marks})


JOB = Job("restore", RestoreOptions, run, role="sink")
