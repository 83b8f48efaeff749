"""Audit of an archive: compares it with its manifests, and the manifests with each other and with the stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import (
    Manifest,
    list_topics,
    quoted,
    read_all_manifests,
    segment_path,
    without_replaced,
)
from emsworker.extending.values import OffsetRange, counted
from emsworker.spark.jobs.archive.reading import sums

ERROR, NOTE = "error", "note"
Trimmed = dict[tuple[str, int], int]
"""The offset up to which a partition is deleted, by topic and partition."""


@dataclass(frozen=True)
class AuditFinding:
    """A defect that a check found.

    Attributes:
        check: the name of the check.
        severity: ``error``, or ``note`` for what fixes itself or may be intended.
        count: the number of rows, offsets or files.
        detail: what, where, and what to do.
        damaged: the segment that cannot be trusted because of it.
    """

    check: str
    severity: str
    topic: str
    group: str | None
    partition: int | None
    count: int
    detail: str
    damaged: str | None = None


def audit(spark: Any, folder: Folder, wanted: tuple[str, ...], stream: str, trimmed: Trimmed) -> Iterator[AuditFinding]:
    """Find all defects of an archive.

    Args:
        wanted: only these topics; empty for all.
        stream: the id of the audited stream; segments of others are compared with their files only.

    Raises:
        ArchiveDamaged: a manifest cannot be read.
    """
    for topic in list_topics(folder):
        if wanted and topic not in wanted:
            continue
        every = read_all_manifests(folder, topic)
        yield from _stray(folder, topic, every)
        manifests = without_replaced(every)
        for manifest in manifests:
            yield from _files(spark, folder, manifest)
        yield from _ranges(topic, manifests)
        mine = [one for one in manifests if one.stream == stream]
        yield from _unfinished(topic, mine, trimmed)


def _stray(folder: Folder, topic: str, manifests: list[Manifest]) -> Iterator[AuditFinding]:
    known = {manifest.segment for manifest in manifests}
    for name in folder.children(f"data/{quoted(topic)}"):
        if name not in known:
            text = f"segment {name} has files but no manifest: its job died or runs; the next archive removes it"
            yield AuditFinding("archive", NOTE, topic, None, None, len(folder.files(segment_path(topic, name))), text)


def _files(spark: Any, folder: Folder, manifest: Manifest) -> Iterator[AuditFinding]:
    path = segment_path(manifest.topic, manifest.segment)
    there = {f"{path}/{name}": size for name, size in folder.files(path).items()}
    bad = [one for one in manifest.files if there.get(one.path) != one.bytes]
    for one in bad:
        size = there.get(one.path)
        found = "is missing" if size is None else f"has {size} bytes instead of {one.bytes}"
        text = f"{one.path} {found}: restore it from a backup"
        yield AuditFinding("archive", ERROR, manifest.topic, None, None, one.rows, text, manifest.segment)
    for dataset in sorted({part.dataset for part in manifest.parts}):
        if any(one.dataset == dataset for one in bad):
            continue  # already reported; reading it would fail
        yield from _sums(spark, folder, manifest, dataset)


def _sums(spark: Any, folder: Folder, manifest: Manifest, dataset: str) -> Iterator[AuditFinding]:
    try:
        found, _ = sums(spark, folder, dataset, manifest.files)
    except Exception as error:  # a damaged Parquet file fails in many ways
        text = f"segment {manifest.segment}: {dataset} cannot be read ({str(error).strip().splitlines()[0][:200]})"
        yield AuditFinding("archive", ERROR, manifest.topic, None, None, 0, text, manifest.segment)
        return
    for part in manifest.of(dataset):
        sum_ = found.pop((part.group, part.offsets.partition), None)
        rows, checksum = (0, 0) if sum_ is None else (sum_.rows, sum_.checksum)
        if (rows, checksum) != (part.rows, part.checksum):
            text = (
                f"segment {manifest.segment}: {dataset} has {counted(rows, 'row')} ({checksum:x}), its manifest says "
                f"{part.rows} ({part.checksum:x}): restore its files from a backup"
            )
            place = (manifest.topic, part.group or None, part.offsets.partition)
            yield AuditFinding("archive", ERROR, *place, part.rows, text, manifest.segment)
    for (group, partition), sum_ in found.items():
        text = f"segment {manifest.segment} has {dataset} that its manifest does not know"
        yield AuditFinding("archive", ERROR, manifest.topic, group or None, partition, sum_.rows, text)


def _ranges(topic: str, manifests: list[Manifest]) -> Iterator[AuditFinding]:
    """Check that the segments of a partition neither overlap nor leave gaps."""
    by_place: dict[tuple[str, int, int], list[tuple[OffsetRange, str]]] = {}
    for manifest in manifests:
        for part in manifest.of("messages"):
            place = (manifest.stream, manifest.topic_id, part.offsets.partition)
            by_place.setdefault(place, []).append((part.offsets, manifest.segment))
    for (_, _, partition), ranges in by_place.items():
        for (one, first), (other, second) in pairwise(sorted(ranges)):
            if both := replace(one, start=other.start):
                text = f"{both} are in segment {first} and in {second}"
                yield AuditFinding("archive", ERROR, topic, None, partition, len(both), text)
            elif between := replace(one, start=one.end, end=other.start):
                text = f"{between} are in no segment: retention did not wait for the archive then"
                yield AuditFinding("archive", NOTE, topic, None, partition, len(between), text)


def _unfinished(topic: str, manifests: list[Manifest], trimmed: Trimmed) -> Iterator[AuditFinding]:
    for manifest in manifests:
        for part in manifest.of("messages"):
            partition, offsets = part.offsets.partition, part.offsets
            done = trimmed.get((topic, partition))
            if done is not None and (left := offsets.part(done, offsets.end)):
                text = f"segment {manifest.segment} is archived but not dropped yet: run the archive job again"
                yield AuditFinding("archive", NOTE, topic, None, partition, len(left), text)
