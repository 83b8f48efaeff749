"""What an archive holds: one manifest for each segment, and reading by them.

``manifests/TOPIC/SEGMENT.json`` is the commit of a segment: files without one belong to a job that died, and are never
read. It says which offsets of which partitions the segment has, with row counts and checksums, and lists its files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from emsworker.core.errors import EmsError
from emsworker.pipeline.folder import Folder, open_folder
from emsworker.store.archive import Sum

VERSION = 1


class ArchiveDamaged(EmsError):
    """A manifest cannot be read, or what it names is not there."""


@dataclass(frozen=True)
class Part:
    """The rows of one dataset, partition and group.

    Attributes:
        group, group_id: empty and 0 for messages.
        lo, hi: the offsets that it covers, ``hi`` exclusive.
        checksum: the sum of its rows' hashes.
    """

    dataset: str
    partition: int
    lo: int
    hi: int
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
    """A Parquet file; its path is below the archive's folder."""

    dataset: str
    path: str
    date: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """One segment.

    Attributes:
        stream: the id of the stream that it came from.
        archived_at: when, ISO 8601.
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
        """Its parts of a dataset."""
        return [part for part in self.parts if part.dataset == dataset]

    def write(self, folder: Folder) -> None:
        """Commit the segment."""
        folder.write(manifest_path(self.topic, self.segment), json.dumps(asdict(self), indent=1) + "\n")


def quoted(topic: str) -> str:
    """A topic's name as the name of a folder: of the characters that names may have, file systems mind the colon."""
    return topic.replace(":", "%3A")


def manifest_path(topic: str, segment: str) -> str:
    """Where a segment's manifest is."""
    return f"manifests/{quoted(topic)}/{segment}.json"


def segment_path(topic: str, segment: str) -> str:
    """Where its files are."""
    return f"data/{quoted(topic)}/{segment}"


def topics(folder: Folder) -> list[str]:
    """The topics that an archive has."""
    return [name.replace("%3A", ":") for name in folder.children("manifests")]


def read_manifests(folder: Folder, topic: str) -> list[Manifest]:
    """The committed segments of a topic, the oldest first.

    Raises:
        ArchiveDamaged: one cannot be read.
    """
    names = [name.removesuffix(".json") for name in folder.children(f"manifests/{quoted(topic)}")]
    found = [_parse(manifest_path(topic, name), folder.read(manifest_path(topic, name))) for name in names]
    return sorted(found, key=lambda one: (one.archived_at, one.segment))


def _parse(path: str, text: str) -> Manifest:
    try:
        raw: dict[str, Any] = json.loads(text)
        if raw["version"] != VERSION:
            raise ArchiveDamaged(f"{path} is of version {raw['version']}; this code reads {VERSION}: upgrade emsworker")
        parts = tuple(Part(**one) for one in raw.pop("parts"))
        return Manifest(**{**raw, "parts": parts, "files": tuple(File(**one) for one in raw["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path} is no manifest ({error}); restore it from a backup") from None


def read_files(spark: Any, folder: Folder, dataset: str, files: Iterable[File]) -> Any:
    """A data frame of these files, with the columns of ``format("ems")``."""
    schema = schema_of(dataset)
    paths = [folder.url(one.path) for one in files if one.dataset == dataset]
    return spark.read.schema(schema).parquet(*paths) if paths else spark.createDataFrame([], schema)


def schema_of(dataset: str) -> Any:
    """The columns of a dataset in an archive: all that ``format("ems")`` knows, the headers as they are stored."""
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
    """What an archive has of a topic, as a data frame.

    Args:
        location: the archive's folder.
        dataset: ``messages`` (tombstones and cancelled ones, too: see ``kind``), ``claims`` or ``attempts``.
        since, until: the first and the last day wanted, ``2026-11-21``; files of other days are not opened.

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
