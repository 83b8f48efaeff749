"""Manifests of an archive, one for each segment.

``manifests/TOPIC/SEGMENT.json`` is the commit of a segment: files without one belong to a job that died, and are never
read. It names the offsets of each partition in the segment, with row counts and checksums, and lists its files.

Compaction writes one segment with the rows of several. Its manifest names them as its origins, and from the moment when
it exists, theirs are *replaced*: readers pass over them. Manifests and files that are replaced are deleted later, so
that a reader that listed them before still finds the files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from emsworker.arrow.folder import Folder, LocalFolder, ReadableFolder, open_readable
from emsworker.extending.errors import ConfigError, EmsError, Problem
from emsworker.extending.values import OffsetRange

VERSION = 1
DATASETS = ("messages", "claims", "attempts")
"""What a segment holds."""


class ArchiveDamaged(EmsError):
    """A manifest cannot be read, or a file that it names is missing."""


@dataclass(frozen=True)
class Sum:
    """A number of rows, and the sum of their hashes."""

    rows: int = 0
    checksum: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.rows + other.rows, self.checksum + other.checksum)


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
        archived_at: time of the commit, ISO 8601; of a compacted segment, that of its last origin.
        origins: the segments that its rows were archived as, if it was compacted.
        compacted_at: time of the compaction, ISO 8601.
    """

    segment: str
    stream: str
    topic: str
    topic_id: int
    archived_at: str
    parts: Sequence[Part]
    files: Sequence[File]
    origins: Sequence[str] = ()
    compacted_at: str = ""
    version: int = VERSION

    @property
    def held(self) -> frozenset[str]:
        """The segments that its rows were archived as: itself, if it was not compacted."""
        return frozenset(self.origins or (self.segment,))

    def of(self, dataset: str) -> list[Part]:
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


def list_topics(folder: ReadableFolder) -> list[str]:
    """List the topics of an archive."""
    return [name.replace("%3A", ":") for name in folder.children("manifests")]


def why_empty(folder: ReadableFolder, location: str, topic: str) -> Problem:
    """Return what is wrong with a read that finds no segment of a topic: its name, or the folder's."""
    if topics := list_topics(folder):
        return Problem("topic", topic, f"the archive in {location} has {', '.join(topics)}")
    return Problem("folder", location, "there is no archive in it; name the folder of `ems pipeline archive`")


def read_manifests(folder: ReadableFolder, topic: str) -> list[Manifest]:
    """Read the manifests of a topic's segments that are not replaced, oldest first.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
    """
    return without_replaced(read_all_manifests(folder, topic))


def read_all_manifests(folder: ReadableFolder, topic: str) -> list[Manifest]:
    """Read the manifests of a topic's segments, replaced ones included, oldest first.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
    """
    path = f"manifests/{quoted(topic)}"
    while True:
        names = [name for name in folder.children(path) if name.endswith(".json")]
        try:
            found = [_parse(f"{path}/{name}", folder.read(f"{path}/{name}")) for name in names]
        except ArchiveDamaged:
            raise
        except Exception:  # each file system has its own error for a file that is gone
            if set(names) <= set(folder.children(path)):
                raise
            continue  # compaction removed replaced manifests after they were listed
        return sorted(found, key=lambda one: (one.archived_at, one.segment))


def without_replaced(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the manifests whose rows are in no other one."""
    return [one for one in manifests if not any(one.held < other.held for other in manifests)]


def _parse(path: str, text: str) -> Manifest:
    try:
        raw: dict[str, Any] = json.loads(text)
        if raw["version"] != VERSION:
            raise ArchiveDamaged(f"{path} is of version {raw['version']}; this code reads {VERSION}: upgrade emsworker")
        parts = tuple(Part(**one | {"offsets": OffsetRange(**one["offsets"])}) for one in raw.pop("parts"))
        return Manifest(**{**raw, "parts": parts, "files": tuple(File(**one) for one in raw["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path} is no manifest ({error}); restore it from a backup") from None


def in_days(files: Sequence[File], since: str | None, until: str | None) -> list[File]:
    """Return the files whose day is ``since`` or later, and ``until`` or earlier."""
    return [one for one in files if (since is None or one.date >= since) and (until is None or one.date <= until)]


# -- for users ---------------------------------------------------------------------------------------------------------


def archive_files(
    folder: str | Path,
    topic: str,
    dataset: str = "messages",
    *,
    since: date | str | None = None,
    until: date | str | None = None,
) -> list[str]:
    """List the Parquet files of an archived topic, for DuckDB, Polars, pandas or any other reader of Parquet.

    The answer comes from the archive's manifests. A listing of the folder would also find files of jobs that died, and
    files that were compacted into others. Spark and Java are not needed.

    Args:
        folder: the archive: a path, or a URL that PyArrow reads.
        topic: the name of the topic.
        dataset: ``messages`` (with tombstones and cancelled ones: see ``kind``), ``claims`` or ``attempts``.
        since, until: the first and the last day in UTC, ``2026-11-21`` or a ``date``; files of other days are left out.

    Returns:
        paths, or URLs if ``folder`` is one; in the order in which they were archived.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
        ConfigError: an argument is wrong; the archive does not have the topic.
        ExtraMissing: ``folder`` is a URL, and PyArrow is not installed.
    """
    problems = []
    if dataset not in DATASETS:
        problems.append(Problem("dataset", repr(dataset), f"must be one of {', '.join(DATASETS)}"))
    days: dict[str, str | None] = {}
    for name, given in (("since", since), ("until", until)):
        days[name] = _day(given)
        if given is not None and days[name] is None:
            problems.append(Problem(name, repr(given), "must be a day like 2026-11-21, or a date"))
    if problems:
        raise ConfigError(problems)
    opened = open_readable(str(folder))
    manifests = read_manifests(opened, topic)
    if not manifests:
        raise ConfigError([why_empty(opened, str(folder), topic)])
    files = [one for manifest in manifests for one in in_days(manifest.files, **days) if one.dataset == dataset]
    return [str(opened.path(one.path)) if isinstance(opened, LocalFolder) else opened.url(one.path) for one in files]


def _day(given: date | str | None) -> str | None:
    """Return a day as the manifests write it; ``None`` if it is not one."""
    try:
        if isinstance(given, str):
            given = date.fromisoformat(given)
    except ValueError:
        return None
    return given.isoformat() if type(given) is date else None
