"""Compaction of an archive and its Iceberg tables: no row is lost, doubled or hidden, whenever a job is killed."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest
from py4j.protocol import Py4JError

from emsworker.arrow import archive_files
from emsworker.arrow.manifest import read_all_manifests, read_manifests
from emsworker.core.errors import ConfigError
from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.archive import ArchiveOptions
from emsworker.spark.jobs.archive.choosing import job_name
from emsworker.spark.jobs.archive.compact import CompactOptions
from emsworker.spark.jobs.archive.iceberg import IcebergFailed
from emsworker.spark.jobs.archive.reading import ArchiveDiffers
from emsworker.spark.jobs.archive.restore import RestoreOptions
from emsworker.spark.jobs.folder import open_folder
from emsworker.spark.jobs.reports.quality import QualityOptions
from emsworker.spark.jobs.session import told
from tests.spark import archives
from tests.spark.archives import fill, table_messages
from tests.support.streams import Stream

ROWS, SEGMENT = 600, 200
_KILLED_AT = ("compacting", "is compacted") if os.environ.get("EMS_TEST_LONG") else ("is compacted",)


class Died(BaseException):
    """What a job raises where it is to end as if it had been killed."""


def dying_after(text: str, times: int = 1) -> Callable[[str], None]:
    lines = []

    def progress(line: str) -> None:
        if text in line:
            lines.append(line)
            if len(lines) == times:
                raise Died(line)

    return progress


def archive(spark: Any, lake: Path, **options: Any) -> dict[str, Any]:
    options = {"segment": SEGMENT, **options}
    return dict(load("archive").run(spark, ArchiveOptions(profile="test", folder=str(lake), **options)).summary)


def compact(spark: Any, lake: Path, **options: Any) -> dict[str, Any]:
    return dict(load("compact").run(spark, CompactOptions(profile="test", folder=str(lake), **options)).summary)


def places(lake: Path, dataset: str = "messages") -> list[tuple[int, int]]:
    """What somebody reads who knows the public function and PyArrow alone."""
    found: list[tuple[int, int]] = []
    for path in archive_files(lake, "orders", dataset):
        table = pq.ParquetFile(path).read(["partition", "offset" if dataset != "claims" else "lo"])
        found += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return found


@pytest.fixture
def lake(stream: Stream, spark: Any, tmp_path: Path) -> Path:
    """An archive of many small segments; nothing is left in the tables."""
    topic = fill(stream, ROWS)
    archive(spark, tmp_path / "lake")
    assert table_messages(stream, topic.id) == {}
    return tmp_path / "lake"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """PyIceberg's catalog ``lake`` in a local SQLite file, as its configuration in the environment names it."""
    from pyiceberg.catalog import load_catalog

    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", type(_env_config())())
    yield load_catalog("lake", **settings)


def _env_config() -> Any:
    from pyiceberg import catalog

    return catalog._ENV_CONFIG


def in_iceberg(catalog: Any) -> list[tuple[int, int]]:
    table = catalog.load_table(("shop", "orders"))
    rows = table.scan(selected_fields=("partition", "offset")).to_arrow()
    return sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


def test_many_small_segments_become_one_with_the_same_rows(stream: Stream, spark: Any, lake: Path) -> None:
    before = {name: archives.archived(lake, "orders", name) for name in ("messages", "claims", "attempts")}
    listed = places(lake)
    old = read_manifests(open_folder(spark, str(lake)), "orders")
    plan = compact(spark, lake, dry_run=True)
    assert plan["segments"] == [] and read_manifests(open_folder(spark, str(lake)), "orders") == old

    done = compact(spark, lake)
    assert len(done["segments"]) == 1 and done["files"][0] > done["files"][1] > 0 and done["deleted"] == []
    (new,) = read_manifests(open_folder(spark, str(lake)), "orders")
    assert new.held == {one.segment for one in old} and len(old) == 3
    assert sorted(places(lake)) == sorted(listed) and len(set(listed)) == ROWS
    assert all(Path(one).stat().st_size for one in archive_files(lake, "orders", "claims"))
    options = RestoreOptions(profile="test", folder=str(lake), topic="orders", to="copy")
    assert job_name("restore", options, old, "copy") == job_name("restore", options, [new], "copy"), "it goes on"

    assert compact(spark, lake)["segments"] == [], "there is nothing more to do"
    deleted = compact(spark, lake, keep=0.0)["deleted"]
    assert set(deleted) == new.held
    assert {name: archives.archived(lake, "orders", name) for name in before} == before, "hashed without the job"
    assert {str(path) for path in lake.rglob("*.parquet")} == {
        path for name in before for path in archive_files(lake, "orders", name)
    }
    checked = load("quality").run(spark, QualityOptions(profile="test", folder=str(lake), topic=("orders",)))
    assert checked.failure is None and checked.summary["errors"] == 0
    assert archive(spark, lake)["segments"] == []


def test_segments_that_are_large_together_or_not_dropped_stay_apart(stream: Stream, spark: Any, lake: Path) -> None:
    done = compact(spark, lake, segment=2 * SEGMENT)
    assert len(done["segments"]) == 1
    assert compact(spark, lake, segment=2 * SEGMENT)["segments"] == []
    stream.rows("UPDATE ems_partition SET trimmed = trimmed - 1 WHERE trimmed > 1")
    assert compact(spark, lake)["segments"] == [], "the last rows are not dropped yet"


@pytest.mark.parametrize(
    ("moment", "times", "left"), [("compacting", 1, 3), ("is compacted", 1, 3), ("removing segment", 2, 2)]
)
def test_a_compaction_that_dies_leaves_every_row_once(
    stream: Stream, spark: Any, lake: Path, moment: str, times: int, left: int
) -> None:
    listed = sorted(places(lake))
    with pytest.raises(Died):
        compact(spark, lake, keep=0.0, progress=dying_after(moment, times))
    assert sorted(places(lake)) == listed
    again = compact(spark, lake, keep=0.0)
    assert sorted(places(lake)) == listed
    assert {str(path) for path in lake.rglob("messages/**/*.parquet")} == set(archive_files(lake, "orders"))
    assert len(again["deleted"]) == left


def test_readers_see_the_old_or_the_new_files_while_a_job_is_killed(
    stream: Stream, spark: Any, lake: Path, profiles: Path, tmp_path: Path
) -> None:
    """Kill -9 of the process and its Java, with readers that never stop."""
    listed, wrong, looks, stop = sorted(places(lake)), [], [0], threading.Event()

    def look() -> None:
        while not stop.is_set():
            found = sorted(places(lake))
            looks[0] += 1
            if found != listed:
                wrong.append(len(found))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for step in _KILLED_AT:
            process = archives.job(profiles, "compact", "--folder", str(lake), log=tmp_path / "log")
            archives.killed(process, tmp_path / "log", step, 0.3 if step == "compacting" else 0.0)
        process = archives.job(profiles, "compact", "--folder", str(lake), log=tmp_path / "log")
        assert process.wait(300) == 0, (tmp_path / "log").read_text()
    finally:
        stop.set()
        reader.join()
    assert wrong == [] and looks[0] > 3
    assert len(read_manifests(open_folder(spark, str(lake)), "orders")) == 1


def test_a_damaged_file_is_not_compacted(stream: Stream, spark: Any, lake: Path) -> None:
    path = Path(archive_files(lake, "orders")[0])
    table = pq.ParquetFile(path).read()
    pq.write_table(table.slice(1), path)
    manifests = read_all_manifests(open_folder(spark, str(lake)), "orders")
    with pytest.raises(Py4JError) as caught:  # Hadoop notices by a checksum of its own, where it has written one
        compact(spark, lake)
    assert path.name in str(told(caught.value)), told(caught.value)
    (path.parent / f".{path.name}.crc").unlink()
    with pytest.raises(ArchiveDiffers, match=r"messages of orders/\d, offsets .* nothing was replaced"):
        compact(spark, lake)
    assert read_all_manifests(open_folder(spark, str(lake)), "orders") == manifests


def test_an_archive_is_iceberg_tables_too(stream: Stream, spark: Any, tmp_path: Path, catalog: Any) -> None:
    topic = fill(stream, ROWS)
    rows = sorted(table_messages(stream, topic.id))
    lake = tmp_path / "lake"
    archive(spark, lake, iceberg="lake.shop")
    assert in_iceberg(catalog) == rows == sorted(places(lake))
    table = catalog.load_table(("shop", "orders"))
    day = pl.read_parquet(archive_files(lake, "orders"))["timestamp"].dt.date().min()
    tasks = list(table.scan(row_filter=f"timestamp < '{day}T23:59:59+00:00'").plan_files())
    assert 0 < len(tasks) < len(list(table.scan().plan_files())), "it is partitioned by day"
    with pytest.raises(ConfigError, match=r"--iceberg = lake\.else: this archive is in the tables of lake\.shop"):
        archive(spark, lake, iceberg="lake.else")
    done = compact(spark, lake)
    assert in_iceberg(catalog) == rows and len(done["segments"]) == 1
    files = {task.file.file_path for task in catalog.load_table(("shop", "orders")).scan().plan_files()}
    assert files == {f"file://{path}" for path in archive_files(lake, "orders")}
    assert len(compact(spark, lake, keep=0.0)["deleted"]) == 3
    assert in_iceberg(catalog) == rows
    assert archive(spark, lake)["segments"] == [] and in_iceberg(catalog) == rows


@pytest.mark.parametrize("moment", ["is archived", "is in the Iceberg table", "deleting offsets"])
def test_iceberg_has_every_row_once_whenever_the_archiver_dies(
    stream: Stream, spark: Any, tmp_path: Path, catalog: Any, moment: str
) -> None:
    topic = fill(stream, ROWS)
    rows, lake = sorted(table_messages(stream, topic.id)), tmp_path / "lake"
    for _ in range(3):  # each run ends in the middle of another segment
        with pytest.raises(Died):
            archive(spark, lake, iceberg="lake.shop", progress=dying_after(moment))
        seen = in_iceberg(catalog) if catalog.table_exists(("shop", "orders")) else []
        assert len(set(seen)) == len(seen)
        left = set(table_messages(stream, topic.id))
        assert left | set(seen) == set(rows), "a row is in the tables until Iceberg has it"
    archive(spark, lake)
    assert in_iceberg(catalog) == rows and table_messages(stream, topic.id) == {}


def test_a_compaction_that_dies_before_iceberg_knows_is_caught_up(
    stream: Stream, spark: Any, tmp_path: Path, catalog: Any
) -> None:
    topic = fill(stream, ROWS)
    rows, lake = sorted(table_messages(stream, topic.id)), tmp_path / "lake"
    archive(spark, lake, iceberg="lake.shop")
    with pytest.raises(Died):
        compact(spark, lake, keep=0.0, progress=dying_after("is compacted"))
    assert in_iceberg(catalog) == rows == sorted(places(lake))
    compact(spark, lake, keep=0.0)
    assert in_iceberg(catalog) == rows == sorted(places(lake))
    assert len(list(lake.rglob("messages/**/*.parquet"))) == len(archive_files(lake, "orders"))


def test_without_its_catalog_nothing_is_dropped_and_the_next_run_catches_up(
    stream: Stream, spark: Any, tmp_path: Path, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fill(stream, ROWS)
    rows, lake = sorted(table_messages(stream, topic.id)), tmp_path / "lake"
    (tmp_path / "warehouse").rename(tmp_path / "gone")
    (tmp_path / "warehouse").write_text("no folder")
    with pytest.raises(IcebergFailed, match=r"Iceberg table lake\.shop\.orders cannot be changed .* the next run"):
        archive(spark, lake, iceberg="lake.shop")
    assert sorted(table_messages(stream, topic.id)) == rows and len(places(lake)) == SEGMENT
    (tmp_path / "warehouse").unlink()
    (tmp_path / "gone").rename(tmp_path / "warehouse")
    archive(spark, lake)
    assert in_iceberg(catalog) == rows
    with pytest.raises(ConfigError, match=r"--iceberg = nowhere\.shop: PyIceberg cannot open this catalog"):
        archive(spark, tmp_path / "other", iceberg="nowhere.shop")


def test_duckdb_and_polars_read_an_archive(stream: Stream, spark: Any, lake: Path) -> None:
    listed = sorted(places(lake))
    frame = pl.scan_parquet(archive_files(lake, "orders")).select("partition", "offset").collect()
    assert sorted(frame.rows()) == listed
    files = archive_files(str(lake), "orders")
    query = 'SELECT "partition", "offset" FROM read_parquet($files, hive_partitioning = false)'
    assert sorted(duckdb.execute(query, {"files": files}).fetchall()) == listed
