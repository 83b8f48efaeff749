"""An archive as Iceberg tables, one for each topic: the files that manifests list become part of a table, uncopied.

The manifest stays the commit of a segment. The table's property ``ems.archived`` tells up to which offset the table has
each partition; it changes in the same commit as the table's files. A job that is killed between the manifest and that
commit is caught up by the next one, and one that is killed after it adds nothing twice. The archive remembers its
tables in ``iceberg.json``, so that every later job keeps them up to date.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from emsworker.arrow.columns import COLUMNS, arrow_schema
from emsworker.arrow.folder import Folder
from emsworker.arrow.manifest import Manifest
from emsworker.extending.declaration import require
from emsworker.extending.errors import EmsError
from emsworker.spark.jobs.job import WrongOption

T = TypeVar("T")

_MARK = "iceberg.json"
_PROPERTY = "ems.archived"
_TRIES = 10


class IcebergFailed(EmsError):
    """A segment is archived, but its files could not be added to its Iceberg table."""


class IcebergTables:
    """The Iceberg tables of an archive.

    Args:
        folder: the archive.
        place: catalog and namespace, ``lake.shop``; the catalog is one of PyIceberg's configuration.

    Raises:
        ExtraMissing: PyIceberg is not installed.
        WrongOption: there is no such catalog.
    """

    def __init__(self, folder: Folder, place: str) -> None:
        require("iceberg", "an archive in Iceberg")
        from pyiceberg.catalog import load_catalog

        self._folder, self._place = folder, place
        name, dot, namespace = place.partition(".")
        if not (name and dot and namespace):
            raise WrongOption("--iceberg", place, "must be a catalog and a namespace, such as lake.shop")
        self._namespace = tuple(namespace.split("."))
        try:
            self._catalog = load_catalog(name)
        except Exception as error:  # each kind of catalog has its own
            fix = f"PyIceberg cannot open this catalog ({_line(error)}); configure it in ~/.pyiceberg.yaml"
            raise WrongOption("--iceberg", place, fix) from None

    def add(self, manifests: Sequence[Manifest]) -> list[str]:
        """Add the files of all segments of a topic that its table does not have; return the names of these segments.

        Raises:
            IcebergFailed: the table cannot be changed.
        """
        return self._changing(manifests[0].topic, lambda table: self._add(table, manifests)) if manifests else []

    def _add(self, table: Any, manifests: Sequence[Manifest]) -> list[str]:
        done: dict[str, int] = json.loads(table.properties.get(_PROPERTY, "{}"))
        new = [one for one in manifests if any(end > done.get(key, 0) for key, end in _ends(one).items())]
        if not new:
            return []
        for one in new:
            done |= _ends(one)
        names = [one.segment for one in new]
        with table.transaction() as change:
            change.add_files(self._urls(new), {"ems.segments": " ".join(names)})
            change.set_properties({_PROPERTY: json.dumps(done, sort_keys=True)})
        return names

    def replace(self, compacted: Manifest, replaced: Sequence[Manifest]) -> bool:
        """Exchange the files of replaced segments for those of the segment that they were compacted into.

        Nothing is done if the table no longer has the old files, or only some: then somebody rewrote its data, and it
        is left as it is.

        Raises:
            IcebergFailed: the table cannot be changed.
        """
        return self._changing(compacted.topic, lambda table: self._replace(table, compacted, replaced))

    def _replace(self, table: Any, compacted: Manifest, replaced: Sequence[Manifest]) -> bool:
        from pyiceberg.io.pyarrow import parquet_file_to_data_file

        old, tasks = self._urls(replaced), {task.file.file_path: task for task in table.scan().plan_files()}
        if not old or any(url not in tasks or tasks[url].delete_files for url in old):
            return False
        new = [parquet_file_to_data_file(table.io, table.metadata, url) for url in self._urls([compacted])]
        with (
            table.transaction() as change,
            change.update_snapshot(snapshot_properties={"ems.segments": compacted.segment}).overwrite() as files,
        ):
            for url in old:
                files.delete_data_file(tasks[url].file)
            for file in new:
                files.append_data_file(file)
        return True

    def uses(self, topic: str, manifests: Sequence[Manifest]) -> bool:
        """Return whether the present snapshot of a topic's table has a file of one of these segments."""
        urls = set(self._urls(manifests))

        def look(table: Any) -> bool:
            return any(task.file.file_path in urls for task in table.scan().plan_files())

        return self._changing(topic, look)

    def _urls(self, manifests: Iterable[Manifest]) -> list[str]:
        return [self._folder.url(f.path) for one in manifests for f in one.files if f.dataset == "messages"]

    def _changing(self, topic: str, work: Callable[[Any], T]) -> T:
        """Call ``work`` with a topic's table, and again with a fresh one if somebody else changed it meanwhile."""
        from pyiceberg.exceptions import CommitFailedException

        for left in reversed(range(_TRIES)):
            try:
                table = self._table(topic)
                # PyIceberg would commit the same change again upon somebody else's, who may have added the same files.
                table.metadata.properties["commit.retry.num-retries"] = "0"
                return work(table)
            except CommitFailedException as error:
                if not left:
                    raise self._failed(topic, error) from error
            except Exception as error:  # each kind of catalog and of storage has its own
                raise self._failed(topic, error) from error
        raise AssertionError("the last try returned or raised")

    def _failed(self, topic: str, error: Exception) -> IcebergFailed:
        return IcebergFailed(
            f"Iceberg table {self._place}.{topic} cannot be changed ({_line(error)}); the segment is archived, and the "
            "next run of the job adds it"
        )

    def _table(self, topic: str) -> Any:
        """Load the table of a topic, or create it, partitioned by day."""
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
        from pyiceberg.transforms import DayTransform

        name = (*self._namespace, topic)
        try:
            return self._catalog.load_table(name)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._namespace)
        columns = [column for column in COLUMNS["messages"] if column != "headers"]
        try:
            with (
                self._catalog.create_table_transaction(name, arrow_schema("messages", columns)) as change,
                change.update_spec() as spec,
            ):
                spec.add_field("timestamp", DayTransform(), "day")
        except TableAlreadyExistsError:
            pass  # another job was faster
        return self._catalog.load_table(name)


def open_tables(folder: Folder, given: str | None) -> IcebergTables | None:
    """Open the Iceberg tables of an archive: those that it remembers, or the given ones, which it remembers then.

    Raises:
        ExtraMissing: PyIceberg is not installed.
        WrongOption: there is no such catalog, or the archive has other tables.
    """
    known: str | None = json.loads(folder.read(_MARK))["tables"] if _MARK in folder.children("") else None
    if given is not None and known not in (None, given):
        raise WrongOption("--iceberg", given, f"this archive is in the tables of {known}; leave it out")
    place = known or given
    if place is None:
        return None
    tables = IcebergTables(folder, place)
    if known is None:
        folder.write(_MARK, json.dumps({"tables": place}) + "\n")
    return tables


def _ends(manifest: Manifest) -> dict[str, int]:
    """Return the end of a segment's offsets in each partition; topics created again under a name are told apart."""
    of = f"{manifest.stream[:12]}-{manifest.topic_id}"
    return {f"{of}-{part.offsets.partition}": part.offsets.end for part in manifest.of("messages")}


def _line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
