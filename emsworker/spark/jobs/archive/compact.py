"""The job ``compact``: rewrites the files of small neighboring segments of an archive as one segment.

1. the files of a run of segments are read, sorted and written as a new segment;
2. Spark counts and hashes what it reads back, and compares it with the manifests: at any difference the job stops;
3. the manifest of the new segment is written, which names its origins: from here on readers see it instead of them;
4. manifests and files that were replaced are deleted when they have been so for ``--keep``, so that a reader that
   listed them before still finds them.

A job that is killed before step 3 leaves files that are never read, which the next run removes. The server's lock of
the topic keeps other compactions and the archiver out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import (
    File,
    Manifest,
    Part,
    Sum,
    list_topics,
    manifest_path,
    read_all_manifests,
    segment_path,
    without_replaced,
)
from emsworker.arrow.profile import closing_session, open_stream
from emsworker.extending.database import Database
from emsworker.extending.settings import whole
from emsworker.extending.values import counted, new_uid, parse_duration
from emsworker.spark.jobs.archive import rows as store
from emsworker.spark.jobs.archive.copying import FILE_OFFSETS, write_days
from emsworker.spark.jobs.archive.iceberg import IcebergTables, open_tables
from emsworker.spark.jobs.archive.reading import ArchiveDiffers, read_files, remove_unfinished, segment_prefix, written
from emsworker.spark.jobs.folder import open_folder
from emsworker.spark.jobs.job import Job, JobResult, OfTopics, WrongOption, option
from emsworker.spark.jobs.session import prepared


def read_keep(text: str) -> float:
    """Parse a duration of 0 s or more; return seconds.

    Raises:
        ValueError: not a duration.
    """
    return parse_duration(text)


@dataclass(frozen=True, kw_only=True)
class CompactOptions(OfTopics):
    """Options of ``ems pipeline compact``."""

    folder: str = option(help="The archive: a path, or a URL that Spark can write to.", metavar="FOLDER")
    segment: int = option(
        1_000_000,
        help="Offsets of a new segment at most.",
        metavar="N",
        read=whole(1, 1_000_000_000).parse,
    )
    keep: float = option(
        86400.0, help="How long replaced files stay, for readers that have listed them.", metavar="SPAN", read=read_keep
    )


@dataclass
class Counts:
    """Results of a run: new segments, files before and after, and segments that were deleted."""

    segments: list[str] = field(default_factory=list)
    files_before: int = 0
    files_after: int = 0
    deleted: list[str] = field(default_factory=list)


def run(spark: Any, config: CompactOptions) -> JobResult:
    """Compact the segments of an archive that came from the stream.

    Raises:
        WrongOption: the archive does not have a topic.
        ArchiveDiffers, ArchiveBusy, ArchiveDamaged, IcebergFailed: the segments at work are as they were.
    """
    app = open_stream(config.profile)
    with closing_session(app.stream.database) as database:
        spark = prepared(spark)
        folder = open_folder(spark, config.folder)
        there = list_topics(folder)
        for name in config.topic:
            if name not in there:
                raise WrongOption(
                    "--topic", name, f"the archive in {config.folder} has {', '.join(there) or 'no topic'}"
                )
        counts, tables = Counts(), None if config.dry_run else open_tables(folder, None)
        for topic in config.topic or there:
            mine = [one for one in read_all_manifests(folder, topic) if one.stream == str(app.stream.stream_id)]
            for topic_id in sorted({one.topic_id for one in mine}):
                of_topic = [one for one in mine if one.topic_id == topic_id]
                _Compactor(spark, config, database, folder, tables, of_topic, counts).run()
    return JobResult(
        {"segments": counts.segments, "files": [counts.files_before, counts.files_after], "deleted": counts.deleted}
    )


class _Compactor:
    def __init__(
        self,
        spark: Any,
        config: CompactOptions,
        database: Database,
        folder: Folder,
        tables: IcebergTables | None,
        every: Sequence[Manifest],
        counts: Counts,
    ) -> None:
        self._spark, self._config, self._database, self._folder = spark, config, database, folder
        self._tables, self._counts = tables, counts
        self._topic, self._topic_id, self._stream = every[0].topic, every[0].topic_id, every[0].stream

    def run(self) -> None:
        if self._config.dry_run:
            for run in self._runs():
                self._tell(f"would compact {counted(len(run), 'segment')} of {counted(_files(run), 'file')}")
                self._counts.files_before += _files(run)
            return
        lock = store.Lock(self._database, self._topic_id, self._topic)
        try:
            remove_unfinished(self._folder, self._topic, segment_prefix(self._stream, self._topic_id), self._tell)
            if self._tables is not None:  # a segment that its table lacks must not become part of one that it has
                self._tables.add(without_replaced(self._manifests()))
            self._finish()
            for run in self._runs():
                self._compact(run, lock)
            self._finish()
        finally:
            lock.close()

    def _tell(self, text: str) -> None:
        self._config.progress(f"{self._topic}: {text}")

    def _manifests(self) -> list[Manifest]:
        every = read_all_manifests(self._folder, self._topic)
        return [one for one in every if (one.stream, one.topic_id) == (self._stream, self._topic_id)]

    def _runs(self) -> list[list[Manifest]]:
        """Return the runs of neighboring segments that fit into one."""
        found: list[list[Manifest]] = []
        for one in without_replaced(self._manifests()):
            if not self._is_dropped(one):
                break
            last = found[-1] if found else []
            if last and _offsets([*last, one]) <= self._config.segment and _merged([*last, one]) is not None:
                last.append(one)
            else:
                found.append([one])
        return [run for run in found if len(run) > 1]

    def _is_dropped(self, manifest: Manifest) -> bool:
        """Return whether all rows of a segment are gone from the tables: the archiver is done with it."""
        for part in manifest.of("messages"):
            work = partial(store.get_place, topic_id=manifest.topic_id, partition=part.offsets.partition)
            place = self._database.call(work)
            if place is not None and place[1] < part.offsets.end:
                return False
        return True

    def _compact(self, run: list[Manifest], lock: store.Lock) -> None:
        segment = f"{segment_prefix(self._stream, self._topic_id)}{new_uid().hex()}"
        self._tell(f"compacting {counted(len(run), 'segment')} of {counted(_files(run), 'file')} as segment {segment}")
        parts = _merged(run)
        assert parts is not None, "the run was made of segments that can be merged"
        files = [
            file for dataset in sorted({p.dataset for p in parts}) for file in self._write(segment, dataset, run, parts)
        ]
        self._folder.settle(segment_path(self._topic, segment))
        lock.check()
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        origins = sorted(name for one in run for name in one.held)
        last = replace(run[-1], segment=segment, parts=parts, files=files, origins=origins, compacted_at=now)
        last.write(self._folder)
        self._tell(f"segment {segment} is compacted")
        self._counts.segments.append(segment)
        self._counts.files_before += _files(run)
        self._counts.files_after += len(files)

    def _write(self, segment: str, dataset: str, run: list[Manifest], parts: list[Part]) -> list[File]:
        """Write the rows of a dataset, and compare them with the manifests."""
        mine = [part for part in parts if part.dataset == dataset]
        frame = read_files(self._spark, self._folder, dataset, [file for one in run for file in one.files])
        tasks = -(-sum(part.rows for part in mine) // FILE_OFFSETS) or 1
        place = "lo" if dataset == "claims" else "offset"
        spread = frame.coalesce(1) if tasks == 1 else frame.repartitionByRange(tasks, "partition", place)
        write_days(spread, dataset, self._folder.url(f"{segment_path(self._topic, segment)}/{dataset}"))
        found, files = written(self._spark, self._folder, self._topic, segment, dataset)
        for part in mine:
            seen = found.pop((part.group, part.offsets.partition), Sum())
            if seen != part.sum:
                raise ArchiveDiffers(
                    f"{dataset} of {self._topic}/{part.offsets.partition}, {part.offsets}: the manifests have "
                    f"{counted(part.rows, 'row')} ({part.checksum:x}), the new files {seen.rows} ({seen.checksum:x}); "
                    "nothing was replaced. `ems pipeline quality --folder` finds the damaged segment"
                )
        if found:
            raise ArchiveDiffers(f"segments of {self._topic!r} have rows of {dataset} that no manifest knows: {found}")
        return files

    def _finish(self) -> None:
        """Bring the Iceberg table up to date, and delete what has been replaced for long enough."""
        every = self._manifests()
        for new in without_replaced(every):
            replaced = [one for one in every if one.held < new.held]
            if not replaced:
                continue
            if self._tables is not None:
                self._tables.replace(new, [one for one in replaced if not any(one.held < o.held for o in replaced)])
            age = datetime.now(UTC) - datetime.fromisoformat(new.compacted_at)
            if age < timedelta(seconds=self._config.keep):
                continue
            if self._tables is not None and self._tables.uses(self._topic, replaced):
                self._tell("keeping replaced files, which the Iceberg table still has")
                continue
            for one in replaced:
                self._tell(f"removing segment {one.segment}, which was replaced by {new.segment}")
                self._folder.remove(manifest_path(self._topic, one.segment))
                self._folder.remove(segment_path(self._topic, one.segment))
                self._counts.deleted.append(one.segment)


def _files(run: Sequence[Manifest]) -> int:
    return sum(len(one.files) for one in run)


def _offsets(run: Sequence[Manifest]) -> int:
    return sum(len(part.offsets) for one in run for part in one.of("messages"))


def _merged(run: Sequence[Manifest]) -> list[Part] | None:
    """Return the parts of segments in one; ``None`` if their offsets are not adjacent, or a group was created again."""
    found: dict[tuple[str, str, int], Part] = {}
    for part in (part for one in run for part in one.parts):
        key = (part.dataset, part.group, part.offsets.partition)
        before = found.get(key)
        if before is None:
            found[key] = part
            continue
        is_adjacent = before.offsets.end == part.offsets.start
        if before.group_id != part.group_id or (part.dataset == "messages" and not is_adjacent):
            return None
        both = before.sum + part.sum
        offsets = replace(before.offsets, end=part.offsets.end)
        found[key] = replace(before, offsets=offsets, rows=both.rows, checksum=both.checksum)
    return list(found.values())


JOB = Job("compact", CompactOptions, run, role="admin")
