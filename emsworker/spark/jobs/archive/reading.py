"""Reading of an archive with Spark, and the checksums that prove its files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import File, Sum, in_days, quoted, read_all_manifests, read_manifests, segment_path
from emsworker.extending.errors import EmsError
from emsworker.spark.jobs.folder import open_folder


class ArchiveDiffers(EmsError):
    """The files that were written have other rows than what they were made from; nothing was deleted or replaced."""


def segment_prefix(stream: str, topic_id: int) -> str:
    """Return what the names of a topic's segments begin with: other streams and deleted topics may share the folder."""
    return f"{stream[:12]}-{topic_id}-"


def remove_unfinished(folder: Folder, topic: str, prefix: str, tell: Callable[[str], None]) -> None:
    """Remove the files of jobs that died before they wrote their manifest."""
    committed = {manifest.segment for manifest in read_all_manifests(folder, topic)}
    for name in folder.children(f"data/{quoted(topic)}"):
        if name.startswith(prefix) and name not in committed:
            tell(f"removing segment {name}, which was never completed")
            folder.remove(segment_path(topic, name))


def written(spark: Any, folder: Folder, topic: str, segment: str, dataset: str) -> tuple[dict[Key, Sum], list[File]]:
    """Read back a dataset that Spark wrote for a segment: its sums by group and partition, and its files."""
    path = f"{segment_path(topic, segment)}/{dataset}"
    mine = [
        File(dataset, f"{path}/{name}", name.split("date=")[1].split("/")[0], 0, size)
        for name, size in folder.files(path).items()
        if name.endswith(".parquet")
    ]
    found, rows = sums(spark, folder, dataset, mine)
    return found, [replace(one, rows=rows.get("/".join(one.path.rsplit("/", 2)[1:]), 0)) for one in mine]


def read_files(spark: Any, folder: Folder, dataset: str, files: Iterable[File]) -> Any:
    """Read files of a dataset as a data frame with the columns of ``format("ems")``."""
    schema = schema_of(dataset)
    paths = [folder.url(one.path) for one in files if one.dataset == dataset]
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def schema_of(dataset: str) -> Any:
    """Return the columns of a dataset in an archive: all of ``format("ems")``, with headers only as stored."""
    from pyspark.sql.types import StructField, StructType

    from emsworker.spark.columns import KNOWN

    return StructType([StructField(name, kind) for name, kind in KNOWN[dataset].items() if name != "headers"])


def read_archive(
    spark: Any,
    location: str,
    topic: str,
    dataset: str = "messages",
    *,
    since: str | None = None,
    until: str | None = None,
) -> Any:
    """Read a dataset of an archived topic as a data frame.

    Args:
        location: the archive's folder.
        dataset: ``messages`` (with tombstones and cancelled ones: see ``kind``), ``claims`` or ``attempts``.
        since, until: the first and the last day, ``2026-11-21``; files of other days are not opened.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
    """
    folder = open_folder(spark, location)
    files = [one for manifest in read_manifests(folder, topic) for one in in_days(manifest.files, since, until)]
    return read_files(spark, folder, dataset, files)


# -- checksums ---------------------------------------------------------------------------------------------------------

# Spark computes them exactly as the store does in MySQL: both write a row as one text, hash it, and add up 60 bits of
# each hash. Neither sees what the other has read.
TEXTS = {
    "messages": "concat_ws('|', offset, kind, coalesce(upper(replace(uid, '-', '')), '-'), coalesce(hex(key), '-'), "
    "coalesce(hex(tag), '-'), sha2(rawHeaders, 256), sha2(value, 256), size, unix_micros(timestamp), producer)",
    "claims": "concat_ws('|', lo, hi, ackedTo, state, source, isolation, coalesce(client, '-'), claimId, "
    "unix_micros(claimedAt), unix_micros(progressAt))",
    "attempts": "concat_ws('|', offset, attempt, outcome, coalesce(cast(ranMs AS string), '-'), coalesce(client, '-'), "
    "coalesce(sha2(cast(error AS binary), 256), '-'), unix_micros(endedAt))",
}
TIMES = {"messages": "timestamp", "claims": "claimedAt", "attempts": "endedAt"}
"""The column whose day selects a row's folder."""

Key = tuple[str, int]
"""A group (empty for messages) and a partition."""


def sums(spark: Any, folder: Folder, dataset: str, files: Sequence[File]) -> tuple[dict[Key, Sum], dict[str, int]]:
    """Count and hash the rows of a dataset's Parquet files, in one pass.

    Returns:
        a sum for each group and partition, and the number of rows of each file by the last two parts of its path:
        the files of one task have the same name in each day's folder.
    """
    from pyspark.sql import functions as F

    if not any(one.dataset == dataset for one in files):
        return {}, {}
    frame = read_files(spark, folder, dataset, files)
    group = "''" if dataset == "messages" else "group"
    rows = (
        frame.select(
            F.expr(f"{group} AS owner"),
            "partition",
            F.substring_index("_metadata.file_path", "/", -2).alias("file"),
            F.expr(f"cast(conv(substr(sha2({TEXTS[dataset]}, 256), 1, 15), 16, 10) AS decimal(20, 0)) AS hash"),
        )
        .groupBy("owner", "partition", "file")
        .agg(F.count("*").alias("rows"), F.sum("hash").alias("checksum"))
        .collect()
    )
    found: dict[Key, Sum] = {}
    counts: dict[str, int] = {}
    for row in rows:
        key = (row.owner, row.partition)
        found[key] = found.get(key, Sum()) + Sum(row.rows, int(row.checksum))
        counts[row.file] = counts.get(row.file, 0) + row.rows
    return found, counts
