"""The job ``archive``: copies what retention may drop to Parquet files, verifies the copy, and then deletes it.

For each topic whose retention waits for the archive (``ems topics change orders --archive-first``):

1. finish: rows that a manifest lists as archived, and that are still in the tables, are deleted;
2. the log start offset is raised as retention would raise it: offsets below it are no longer read and no longer change;
3. a *segment*, the offsets between what is deleted and the log start offset, is copied to Parquet files, with the
   claims that are done and end below it, and the attempts that no dead letter keeps;
4. MySQL counts and hashes its rows, Spark those of the files: at any difference the job stops and deletes nothing;
5. the manifest is written: from here on the segment is archived; its files are added to the Iceberg table, if any;
6. attempts, then claims, then messages are deleted, exactly those that were copied.

A run that is killed before step 5 leaves files that are never read; the next run removes them. If it is killed after
step 5, the next run continues with step 1. A lock of the server allows one archiver for each topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import (
    File,
    Manifest,
    Part,
    Sum,
    read_manifests,
    segment_path,
)
from emsworker.arrow.planning import Slice
from emsworker.arrow.profile import closing_session, open_stream
from emsworker.extending.database import Database
from emsworker.extending.settings import whole
from emsworker.extending.stream import Kept, retention, topics
from emsworker.extending.values import OffsetRange, counted, new_uid
from emsworker.spark.jobs.archive import rows as store
from emsworker.spark.jobs.archive.copying import copy, cut
from emsworker.spark.jobs.archive.iceberg import IcebergTables, open_tables
from emsworker.spark.jobs.archive.reading import (
    ArchiveDiffers,
    read_files,
    remove_unfinished,
    segment_prefix,
    written,
)
from emsworker.spark.jobs.folder import open_folder
from emsworker.spark.jobs.job import Job, JobResult, OfTopics, WrongOption, option
from emsworker.spark.jobs.session import prepared

_STEP = 20_000
_KEYS = 1000
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, kw_only=True)
class ArchiveOptions(OfTopics):
    """Options of ``ems pipeline archive``."""

    folder: str = option(help="Where the archive is: a path, or a URL that Spark can write to.", metavar="FOLDER")
    segment: int = option(
        1_000_000,
        help="Offsets in one segment at most: what is copied before any is deleted.",
        metavar="N",
        read=whole(1, 1_000_000_000).parse,
    )
    iceberg: str | None = option(
        None,
        help="Keep Iceberg tables of the messages, too: catalog and namespace; the archive remembers them.",
        metavar="CATALOG.NAMESPACE",
    )


@dataclass
class Tally:
    """Segments and row counts of a run."""

    segments: list[str] = field(default_factory=list)
    copied: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("messages", "claims", "attempts"), 0))
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("messages", "claims", "attempts"), 0))


def run(spark: Any, config: ArchiveOptions) -> JobResult:
    """Archive the topics; the steps are in the module's docstring.

    Raises:
        WrongOption: a topic cannot be archived.
        ArchiveDiffers, ArchiveBusy, ArchiveDamaged, IcebergFailed: nothing more was deleted.
    """
    app = open_stream(config.profile)
    with closing_session(app.stream.database) as database:
        chosen = _choose(database, config.topic)
        if config.dry_run:
            return _plan(database, chosen)
        spark = prepared(spark)
        folder = open_folder(spark, config.folder)
        tables = open_tables(folder, config.iceberg)
        tally = Tally()
        for kept in chosen.values():
            _Archiver(spark, config, database, folder, tables, str(app.stream.stream_id), kept, tally).run()
    summary = {"topics": list(chosen), "segments": tally.segments}
    return JobResult(summary | {"copied": tally.copied, "dropped": tally.dropped})


def _choose(database: Database, names: Sequence[str]) -> dict[str, list[Kept]]:
    """List the partitions of each topic to archive."""
    every = {topic.name: topic for topic in database.call(topics.list_topics)}
    for name in names:
        if name not in every:
            raise WrongOption("--topic", name, "there is no such topic; `ems topics list` shows what there is")
        if not every[name].archive_first:
            fix = f"retention would not wait for the archive; run `ems topics change {name} --archive-first`"
            raise WrongOption("--topic", name, fix)
        if every[name].retention_s is None and every[name].keep_done_s is None:
            fix = f"it keeps everything; run `ems topics change {name} --retention 7d`, or with --keep-done 0"
            raise WrongOption("--topic", name, fix)
    found: dict[str, list[Kept]] = {}
    for kept in database.call(retention.list_kept):
        if kept.archive_first and (not names or kept.topic in names):
            found.setdefault(kept.topic, []).append(kept)
    if not found:
        fix = "no topic has both a retention and --archive-first; `ems topics change NAME` sets them"
        raise WrongOption("--topic", "none", fix)
    return found


def _plan(database: Database, chosen: dict[str, list[Kept]]) -> JobResult:
    """Count the offsets that a run would archive now."""
    plan = {}
    for topic, partitions in chosen.items():
        ends = [_rise(database, kept, 1 << 62, plan_only=True) for kept in partitions]
        plan[topic] = sum(end - kept.trimmed for kept, end in zip(partitions, ends, strict=True))
    return JobResult({"topics": list(chosen), "offsets": plan})


def _rise(database: Database, kept: Kept, most: int, *, plan_only: bool = False) -> int:
    """Raise the log start offset as far as retention may, at most to ``most``; return it."""
    work = retention.plan_log_start if plan_only else retention.raise_log_start
    while kept.log_start < most:
        limit = min(_STEP, most - kept.log_start)
        log_start = database.call(partial(work, kept=kept, limit=limit))
        if log_start == kept.log_start:
            break
        kept = replace(kept, log_start=log_start)
    return kept.log_start


class _Archiver:
    def __init__(
        self,
        spark: Any,
        config: ArchiveOptions,
        database: Database,
        folder: Folder,
        tables: IcebergTables | None,
        stream: str,
        partitions: list[Kept],
        tally: Tally,
    ) -> None:
        self._spark, self._config, self._database, self._folder = spark, config, database, folder
        self._stream, self._partitions, self._tally = stream, partitions, tally
        self._tables = tables
        self._topic, self._topic_id = partitions[0].topic, partitions[0].topic_id
        self._prefix = segment_prefix(stream, self._topic_id)
        self._late: list[tuple[int, int]] = []  # places in the deleted range whose dead letters are gone
        self._left: list[tuple[int, int, int]] = []  # (group, partition, offset) of attempts there

    def run(self) -> None:
        lock = store.Lock(self._database, self._topic_id, self._topic)
        try:
            remove_unfinished(self._folder, self._topic, self._prefix, self._tell)
            mine = [one for one in read_manifests(self._folder, self._topic) if self._is_mine(one)]
            self._add_to_tables(mine)
            for manifest in mine:
                self._drop(manifest, lock)
            while ranges := self._next_ranges():
                self._find_left(ranges)
                manifest = self._archive(ranges, lock)
                self._add_to_tables([manifest])
                self._drop(manifest, lock)
                work = partial(retention.delete_restored, topic_id=self._topic_id, places=self._late, archived=True)
                self._database.call(work)
        finally:
            lock.close()

    def _is_mine(self, manifest: Manifest) -> bool:
        return (manifest.stream, manifest.topic_id) == (self._stream, self._topic_id)

    def _add_to_tables(self, manifests: list[Manifest]) -> None:
        """Add segments to their Iceberg table before their rows are deleted: at any time a row is in one of both."""
        if self._tables is not None:
            for name in self._tables.add(manifests):
                self._tell(f"segment {name} is in the Iceberg table")

    def _tell(self, text: str) -> None:
        self._config.progress(f"{self._topic}: {text}")

    def _next_ranges(self) -> list[OffsetRange]:
        """Return the next offsets to archive, at most one segment."""
        left, ranges = self._config.segment, []
        for kept in self._partitions:
            place = self._database.call(partial(store.get_place, topic_id=kept.topic_id, partition=kept.partition))
            if place is None or left <= 0:
                continue
            log_start, trimmed = place
            end = _rise(self._database, replace(kept, log_start=log_start), trimmed + left)
            if offsets := OffsetRange(kept.topic_id, kept.partition, trimmed, min(end, trimmed + left)):
                ranges.append(offsets)
                left -= len(offsets)
        return ranges

    def _find_left(self, ranges: list[OffsetRange]) -> None:
        """Find rows of earlier segments that dead letters kept until now: they are archived with this segment."""
        partitions = {one.partition for one in ranges}
        places = self._database.call(partial(retention.list_restored, topic_id=self._topic_id))
        self._late = [place for place in places if place[0] in partitions]
        self._left = self._database.call(partial(store.list_left, topic_id=self._topic_id, places=self._late))

    # -- one segment ---------------------------------------------------------------------------------------------------

    def _archive(self, ranges: list[OffsetRange], lock: store.Lock) -> Manifest:
        """Copy a segment, compare it, and commit it with its manifest."""
        segment = f"{self._prefix}{new_uid().hex()}"
        self._tell(f"copying {counted(sum(map(len, ranges)), 'offset')} as segment {segment}")
        path = segment_path(self._topic, segment)
        slices = self._slices(ranges)
        for dataset, of_dataset in slices.items():
            if of_dataset:
                tasks = cut(self._config.profile, dataset, of_dataset)
                copy(self._spark, self._config.profile, dataset, tasks, self._folder.url(f"{path}/{dataset}"))
        self._tell("comparing what the server and what Spark count and hash")
        parts, files = self._compare(segment, ranges, [name for name, some in slices.items() if some])
        self._folder.settle(path)
        lock.check()
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        manifest = Manifest(segment, self._stream, self._topic, self._topic_id, now, parts, files)
        manifest.write(self._folder)
        self._tell(f"segment {segment} is archived")
        self._tally.segments.append(segment)
        for part in parts:
            self._tally.copied[part.dataset] += part.rows
        return manifest

    def _slices(self, ranges: list[OffsetRange]) -> dict[str, list[Slice]]:
        groups = [group for group in self._database.call(topics.list_groups) if group.topic_id == self._topic_id]
        found: dict[str, list[Slice]] = {"messages": [], "claims": [], "attempts": []}
        for one in ranges:
            found["messages"].append(Slice(one, self._topic))
            for group in groups:
                log = Slice(one, self._topic, group, one.end)
                # A claim that ended above the last segment begins below this one.
                first = self._database.call(
                    partial(store.first_claim, group_id=group.id, partition=one.partition, default=one.start)
                )
                found["claims"].append(replace(log, offsets=replace(one, start=min(first, one.start))))
                left = self._left_by(group.id, one.partition)
                alone = [replace(one, start=offset, end=offset + 1) for offset in left]
                found["attempts"] += [log, *(replace(log, offsets=offsets) for offsets in alone)]
        return found

    def _left_by(self, group_id: int, partition: int) -> list[int]:
        return [offset for *whose, offset in self._left if whose == [group_id, partition]]

    def _compare(self, segment: str, ranges: list[OffsetRange], datasets: list[str]) -> tuple[list[Part], list[File]]:
        """Return the parts and files of a segment if the server's sums and Spark's are equal.

        Raises:
            ArchiveDiffers: names the first part that differs.
        """
        parts: list[Part] = []
        files: list[File] = []
        for dataset in datasets:
            found, of_dataset = written(self._spark, self._folder, self._topic, segment, dataset)
            files += of_dataset
            for part in self._expected(dataset, ranges):
                spark_sum = found.pop((part.group, part.offsets.partition), Sum())
                if spark_sum != part.sum:
                    raise ArchiveDiffers(_differs(self._topic, part, spark_sum))
                parts += [part] if part.rows or dataset == "messages" else []
            if found:
                raise ArchiveDiffers(
                    f"the files of {self._topic!r} have rows of {dataset} that were not asked for: {found}"
                )
        return parts, files

    def _expected(self, dataset: str, ranges: list[OffsetRange]) -> Iterator[Part]:
        """Yield the parts that the files must have, with the server's counts and checksums."""
        groups = [group for group in self._database.call(topics.list_groups) if group.topic_id == self._topic_id]
        for one in ranges:
            if dataset == "messages":
                total = store.sum_messages(self._database, one)
                yield Part(dataset, one, total.rows, total.checksum)
                continue
            for group in groups:
                if dataset == "claims":
                    total = store.sum_claims(self._database, group.id, one)
                else:
                    late = self._left_by(group.id, one.partition)
                    total = store.sum_attempts(self._database, group.id, one, late)
                yield Part(dataset, one, total.rows, total.checksum, group.name, group.id)

    def _drop(self, manifest: Manifest, lock: store.Lock) -> None:
        """Delete the rows that a manifest lists as archived, if they are still there."""
        lock.check()
        for dataset, count in drop(self._spark, self._database, self._folder, manifest, self._tell):
            self._tally.dropped[dataset] += count


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


def _differs(topic: str, part: Part, spark_sum: Sum) -> str:
    of = f" of group {part.group!r}" if part.group else ""
    return (
        f"{part.dataset}{of} of {topic}/{part.offsets.partition}, {part.offsets}: the server has "
        f"{counted(part.rows, 'row')} ({part.checksum:x}), the files {spark_sum.rows} ({spark_sum.checksum:x}); "
        "nothing was deleted. If rows were changed meanwhile (a purge, a requeued dead letter), run the job again; "
        "else check the disk"
    )


JOB = Job("archive", ArchiveOptions, run, lambda config: not config.dry_run, role="admin")
