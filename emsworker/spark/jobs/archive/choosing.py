"""Options of ``restore`` and ``replay`` that choose messages of an archive."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import File, Manifest, in_days, read_manifests, why_empty
from emsworker.spark.jobs.archive.reading import read_files
from emsworker.spark.jobs.folder import open_folder
from emsworker.spark.jobs.job import Options, WrongOption, option
from emsworker.spark.jobs.reading import read_partition, read_time

_LONGEST_JOB = 160


def read_offsets(text: str) -> tuple[int, int]:
    """Parse ``100-199``, both ends included, or one number.

    Raises:
        ValueError: neither of them; the message is the fix.
    """
    first, dash, last = text.partition("-")
    wrong = not all(re.fullmatch("[0-9]{1,18}", one) for one in ((first, last) if dash else (first,)))
    if wrong or int(last or first) < int(first):
        raise ValueError("must be an offset, or two like 100-199")
    return int(first), int(last or first)


@dataclass(frozen=True, kw_only=True)
class Chosen(Options):
    """Options that choose messages of one archived topic; a message must match all that are given."""

    folder: str = option(help="The archive: a path, or a URL that Spark can read.", metavar="FOLDER")
    topic: str = option(help="The topic that was archived.", metavar="NAME")
    partition: int | None = option(None, help="Only of this partition.", metavar="N", read=read_partition)
    offsets: tuple[int, int] | None = option(None, help="Only these offsets.", metavar="LO-HI", read=read_offsets)
    since: datetime | None = option(None, help="Only sent at this time (UTC) or later.", metavar="TIME", read=read_time)
    until: datetime | None = option(None, help="Only sent before this time (UTC).", metavar="TIME", read=read_time)
    key: str | None = option(None, help="Only with this key.")
    tag: str | None = option(None, help="Only with this tag.")
    where: str | None = option(
        None, help='Only for which this Spark SQL holds, of the columns of format("ems").', metavar="SQL"
    )
    job: str | None = option(None, help="A name; the same job again goes on, or does nothing if it is done.")


def job_name(kind: str, config: Chosen, manifests: list[Manifest], target: str) -> str:
    """Return the name that identifies this job: by default a hash of its options and of the archive's segments.

    Raises:
        WrongOption: the given name is empty or too long.
    """
    if config.job is not None:
        if not 1 <= len(config.job.encode()) <= _LONGEST_JOB:
            raise WrongOption("--job", config.job, f"must have 1 to {_LONGEST_JOB} bytes")
        return f"{kind}:{config.job}"
    asked: list[object] = [config.topic, config.partition, config.offsets, str(config.since), str(config.until)]
    asked += [config.key, config.tag, config.where, target, sorted(name for one in manifests for name in one.held)]
    return f"{kind}:{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:32]}"


def find(spark: Any, config: Chosen) -> tuple[Folder, list[Manifest]]:
    """Open the archive and read the manifests of the topic.

    Raises:
        WrongOption: the archive has no such topic.
        ArchiveDamaged: a manifest cannot be read.
    """
    folder = open_folder(spark, config.folder)
    manifests = read_manifests(folder, config.topic)
    if not manifests:
        wrong = why_empty(folder, config.folder, config.topic)
        raise WrongOption(f"--{wrong.name}", wrong.value, wrong.fix)
    return folder, manifests


def choose(spark: Any, folder: Folder, manifests: list[Manifest], config: Chosen) -> Any:
    """Return the chosen messages, ordered by partition and offset, without tombstones and cancelled ones.

    Raises:
        WrongOption: ``--where`` is not a condition.
    """
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as F

    frame = read_files(spark, folder, "messages", _files(manifests, config)).where("kind = 'message'")
    if config.partition is not None:
        frame = frame.where(F.col("partition") == config.partition)
    if config.offsets is not None:
        frame = frame.where(F.col("offset").between(*config.offsets))
    for time, compare in ((config.since, ">="), (config.until, "<")):
        if time is not None:
            frame = frame.where(F.expr(f"unix_micros(timestamp) {compare} {_micros(time)}"))
    for name, wanted in (("key", config.key), ("tag", config.tag)):
        if wanted is not None:
            frame = frame.where(F.col(name) == F.lit(wanted.encode()))
    if config.where is not None:
        try:
            frame = frame.where(config.where)
        except (AnalysisException, ParseException) as error:
            fix = f"is no condition on the columns of a message: {str(error).strip().splitlines()[0]}"
            raise WrongOption("--where", config.where, fix) from None
    return frame.orderBy("partition", "offset")


def _files(manifests: list[Manifest], config: Chosen) -> list[File]:
    """Return the files whose day is within the time range."""
    since, until = (None if time is None else time.date().isoformat() for time in (config.since, config.until))
    return [file for manifest in manifests for file in in_days(manifest.files, since, until)]


def _micros(time: datetime) -> int:
    since = time - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds
