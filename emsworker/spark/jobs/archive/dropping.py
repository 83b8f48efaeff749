"""Delete from the tables the rows that a manifest lists as archived; continues a deletion that a killed run began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from emsworker.spark.jobs.archive.manifest import Manifest, Part, read_files
from emsworker.spark.jobs.folder import Folder
from emsworker.store.engine.database import Database
from emsworker.store.stream import archive as store

_KEYS = 1000
_EPOCH = datetime(1970, 1, 1)


def drop(
    spark: Any, database: Database, folder: Folder, manifest: Manifest, tell: Callable[[str], None]
) -> Iterator[tuple[str, int]]:
    """Delete attempts, then claims, then messages, so that ``trimmed`` reaches the end only when all are deleted.

    Yields:
        a dataset and its number of deleted rows (for messages: offsets).
    """
    for part in manifest.of("messages"):
        partition, end = part.offsets.partition, part.offsets.end
        place = database.call(partial(store.get_place, topic_id=manifest.topic_id, partition=partition))
        if place is None or not (left := part.offsets.part(place[1], end)):
            continue  # all of it was deleted before
        assert place[0] >= end, "the log start offset was raised before anything was copied, and never sinks"
        tell(f"deleting {left} of partition {partition}")
        for dataset in ("attempts", "claims"):
            for log in manifest.of(dataset):
                if log.offsets.partition == partition:
                    yield dataset, _drop_log(spark, database, folder, manifest, log)
        for count in store.delete_messages(database, left):
            yield "messages", count


def _drop_log(spark: Any, database: Database, folder: Folder, manifest: Manifest, part: Part) -> int:
    from pyspark.sql import functions as F

    is_claim = part.dataset == "claims"
    frame = read_files(spark, folder, part.dataset, manifest.files)
    mine = frame.where((F.col("group") == part.group) & (F.col("partition") == part.offsets.partition))
    keys = mine.select("lo", "claimId") if is_claim else mine.select("offset", F.unix_micros("endedAt"))
    rows = keys.toLocalIterator()
    where: dict[str, Any] = {"group_id": part.group_id, "partition": part.offsets.partition}
    deleted = 0
    while chunk := [tuple(row) for row in islice(rows, _KEYS)]:
        if is_claim:
            deleted += database.call(partial(store.delete_claims, keys=chunk, **where))
        else:
            ended = [(offset, str(_EPOCH + timedelta(microseconds=us))) for offset, us in chunk]
            deleted += database.call(partial(store.delete_attempts, keys=ended, **where))
    return deleted
