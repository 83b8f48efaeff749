"""The Iceberg tables of an archive, without Spark: a local SQLite catalog, and files as the job ``archive`` leaves them."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from emsworker import ConfigError
from emsworker.arrow.columns import COLUMNS, arrow_schema
from emsworker.arrow.folder import LocalFolder
from emsworker.arrow.manifest import File, Manifest, Part
from emsworker.core.offsets import OffsetRange
from emsworker.spark.jobs.archive.iceberg import IcebergFailed, IcebergTables, open_tables

pytest.importorskip("pyiceberg")

SCHEMA = arrow_schema("messages", [name for name in COLUMNS["messages"] if name != "headers"])


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """PyIceberg's catalog ``lake``, as the environment configures it."""
    from pyiceberg import catalog
    from pyiceberg.utils.config import Config

    (tmp_path / "warehouse").mkdir()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr(catalog, "_ENV_CONFIG", Config())
    return catalog.load_catalog("lake")


@pytest.fixture
def folder(tmp_path: Path) -> LocalFolder:
    return LocalFolder(tmp_path / "lake")


def segment(folder: LocalFolder, name: str, start: int, end: int, **facts: Any) -> Manifest:
    """A segment of a topic, with a file for each of two days."""
    files = []
    for day in (20, 21):
        rows = [row(offset, day) for offset in range(start, end) if offset % 2 == day % 2]
        path = f"data/shop%3Aorders/{name}/messages/date=2026-11-{day}/part-0.parquet"
        folder.path(path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), folder.path(path))
        files.append(File("messages", path, f"2026-11-{day}", len(rows), folder.path(path).stat().st_size))
    part = Part("messages", OffsetRange(1, 0, start, end), end - start, 1)
    return Manifest(name, "stream", "shop:orders", 1, "2026-11-22T00:00:00+00:00", (part,), tuple(files), **facts)


def row(offset: int, day: int) -> dict[str, Any]:
    born = datetime(2026, 11, day, tzinfo=UTC) + timedelta(seconds=offset)
    return {"topic": "shop:orders", "partition": 0, "offset": offset, "timestamp": born, "value": b"v"}


def offsets(catalog: Any, where: str = "offset >= 0") -> list[int]:
    table = catalog.load_table(("shop", "shop:orders"))
    return sorted(table.scan(where, selected_fields=("offset",)).to_arrow()["offset"].to_pylist())


def test_segments_are_added_once(folder: LocalFolder, catalog: Any) -> None:
    tables = IcebergTables(folder, "lake.shop")
    one, two = segment(folder, "a", 1, 5), segment(folder, "b", 5, 9)
    assert tables.add([one]) == ["a"]
    assert tables.add([one]) == []
    assert offsets(catalog) == [1, 2, 3, 4]
    assert IcebergTables(folder, "lake.shop").add([one, two]) == ["b"], "another job knows what is there"
    assert offsets(catalog) == list(range(1, 9))
    other = replace(segment(folder, "c", 1, 3), topic_id=2)
    assert tables.add([one, two, other]) == ["c"], "a topic that was created again begins anew"
    assert (
        len(
            list(
                catalog.load_table(("shop", "shop:orders")).scan("timestamp < '2026-11-21T00:00:00+00:00'").plan_files()
            )
        )
        == 3
    )


def test_a_segment_is_added_in_one_commit_with_what_tells_so(
    folder: LocalFolder, catalog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that dies in the middle of the commit leaves neither; one that lost a race tries again."""
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.exceptions import CommitFailedException

    tables, one, two = IcebergTables(folder, "lake.shop"), segment(folder, "a", 1, 5), segment(folder, "b", 5, 9)
    tables.add([one])
    commit: Callable[..., Any] = SqlCatalog.commit_table

    class Died(BaseException):
        """As by kill -9."""

    def dying(*arguments: Any, **named: Any) -> Any:
        raise Died

    monkeypatch.setattr(SqlCatalog, "commit_table", dying)
    with pytest.raises(Died):
        tables.add([one, two])
    monkeypatch.setattr(SqlCatalog, "commit_table", commit)
    assert offsets(catalog) == [1, 2, 3, 4]

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(SqlCatalog, "commit_table", commit)
        assert IcebergTables(folder, "lake.shop").add([one, two]) == ["b"]
        raise CommitFailedException("somebody else was faster")

    monkeypatch.setattr(SqlCatalog, "commit_table", late)
    assert tables.add([one, two]) == []
    assert offsets(catalog) == list(range(1, 9))


def test_compacted_files_take_the_place_of_the_old_ones(folder: LocalFolder, catalog: Any) -> None:
    tables, one, two = IcebergTables(folder, "lake.shop"), segment(folder, "a", 1, 5), segment(folder, "b", 5, 9)
    both = segment(folder, "ab", 1, 9, origins=["a", "b"])
    tables.add([one, two])
    assert tables.uses("shop:orders", [one]) and not tables.uses("shop:orders", [both])
    assert tables.replace(both, [one, two])
    assert not tables.replace(both, [one, two]), "it is done"
    assert offsets(catalog) == list(range(1, 9))
    assert tables.uses("shop:orders", [both]) and not tables.uses("shop:orders", [one, two])
    assert tables.add([both]) == []
    assert offsets(catalog, "timestamp >= '2026-11-21T00:00:00+00:00'") == [1, 3, 5, 7]


def test_a_table_that_somebody_rewrote_is_left_alone(folder: LocalFolder, catalog: Any) -> None:
    tables, one, two = IcebergTables(folder, "lake.shop"), segment(folder, "a", 1, 5), segment(folder, "b", 5, 9)
    tables.add([one, two])
    catalog.load_table(("shop", "shop:orders")).delete("timestamp < '2026-11-21T00:00:00+00:00'")
    left = offsets(catalog)
    assert left == [1, 3, 5, 7]
    assert not tables.replace(segment(folder, "ab", 1, 9, origins=["a", "b"]), [one, two])
    assert offsets(catalog) == left and tables.uses("shop:orders", [one, two])
    assert tables.add([one, two]) == [], "what was deleted on purpose stays so"


def test_an_archive_remembers_its_tables(folder: LocalFolder, catalog: Any) -> None:
    assert open_tables(folder, None) is None
    assert open_tables(folder, "lake.shop") is not None
    assert open_tables(folder, None) is not None and open_tables(folder, "lake.shop") is not None
    with pytest.raises(ConfigError, match=r"--iceberg = lake\.other: this archive is in the tables of lake\.shop"):
        open_tables(folder, "lake.other")


def test_what_is_wrong_is_named(folder: LocalFolder, catalog: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--iceberg = lake: must be a catalog and a namespace"):
        open_tables(folder, "lake")
    with pytest.raises(ConfigError, match=r"--iceberg = nowhere\.shop: PyIceberg cannot open this catalog"):
        open_tables(folder, "nowhere.shop")
    assert open_tables(folder, None) is None, "a wrong place is not remembered"
    tables, one = IcebergTables(folder, "lake.shop"), segment(folder, "a", 1, 5)
    folder.remove(one.files[0].path)
    with pytest.raises(IcebergFailed, match=r"Iceberg table lake\.shop\.shop:orders cannot be changed"):
        tables.add([one])
