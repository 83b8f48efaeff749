"""Manifests of an archive, one for each segment, and readers of the files that they list.

``manifests/TOPIC/SEGMENT.json`` is the commit of a segment: files without one belong to a job that died, and are never
read. It names the offsets of each partition in the segment, with row counts and checksums, and lists its files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emsworker.core.errors import EmsError
from emsworker.core.offsets import OffsetRange
from emsworker.spark.jobs.folder import Folder, open_folder
from emsworker.store.stream.archive import Sum

VERSION = 1


class ArchiveDamaged(EmsError):
    """A manifest cannot be read, or a file that it names is missing."""


@dataclass(frozen=True)
class Part:
    """The rows of one dataset, partition and group.

    Attributes:
        group, group_id: empty and 0 for messages.
        checksum: the sum of its rows' hashes.
    """

    dataset: str
    offsets: OffsetRange
    rows: int
    checksum: int
    group: str = ""
    group_id: int = 0

    @property
    def sum(self) -> Sum:
        """Rows and checksum."""
        return Sum(self.rows, self.checksum)


@dataclass(frozen=True)
class File:
    """A Parquet file; its path is relative to the archive's folder."""

    dataset: str
    path: str
    date: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """The manifest of a segment.

    Attributes:
        stream: the id of the stream that the segment came from.
        archived_at: time of the commit, ISO 8601.
    """

    segment: str
    stream: str
    topic: str
    topic_id: int
    archived_at: str
    parts: Sequence[Part]
    files: Sequence[File]
    version: int = VERSION

    def of(self, dataset: str) -> list[Part]:
        """Return the parts of a dataset."""
        return [part for part in self.parts if part.dataset == dataset]

    def write(self, folder: Folder) -> None:
        """Commit the segment."""
        folder.write(manifest_path(self.topic, self.segment), json.dumps(asdict(self), indent=1) + "\n")


def quoted(topic: str) -> str:
    """Convert a topic's name to a folder name; the colon is the one allowed character that file systems may reject."""
    return topic.replace(":", "%3A")


def manifest_path(topic: str, segment: str) -> str:
    """Return the path of a segment's manifest."""
    return f"manifests/{quoted(topic)}/{segment}.json"


def segment_path(topic: str, segment: str) -> str:
    """Return the folder of a segment's files."""
    return f"data/{quoted(topic)}/{segment}"


def topics(folder: Folder) -> list[str]:
    """List the topics of an archive."""
    return [name.replace("%3A", ":") for name in folder.children("manifests")]


def read_manifests(folder: Folder, topic: str) -> list[Manifest]:
    """Read the manifests of a topic's committed segments, oldest first.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
    """
    names = [name.removesuffix(".json") for name in folder.children(f"manifests/{quoted(topic)}")]
    found = [_parse(manifest_path(topic, name), folder.read(manifest_path(topic, name))) for name in names]
    return sorted(found, key=lambda one: (one.archived_at, one.segment))


def _parse(path: str, text: str) -> Manifest:
    try:
        raw: dict[str, Any] = json.loads(text)
        if raw["version"] != VERSION:
            raise ArchiveDamaged(f"{path} is of version {raw['version']}; this code reads {VERSION}: upgrade emsworker")
        parts = tuple(Part(**one | {"offsets": OffsetRange(**one["offsets"])}) for one in raw.pop("parts"))
        return Manifest(**{**raw, "parts": parts, "files": tuple(File(**one) for one in raw["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path} is no manifest ({error}); restore it from a backup") from None


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
    files = [
        one
        for manifest in read_manifests(folder, topic)
        for one in manifest.files
        if (since is None or one.date >= since) and (until is None or one.date <= until)
    ]
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
