"""The job ``archive``: everything that it drops is in the archive; test_archive_kills.py kills it."""

from pathlib import Path
from typing import Any

import pytest

from emsworker.core.errors import ConfigError
from emsworker.pipeline import load
from emsworker.pipeline.archive import ArchiveDiffers, ArchiveOptions
from emsworker.pipeline.folder import HadoopFolder
from emsworker.pipeline.manifest import read_archive
from emsworker.store.archive import ArchiveBusy, Lock
from tests.spark.archives import archived, fill, table_attempts, table_claims, table_messages
from tests.support.streams import Stream


def archive(spark: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """One run in this process."""
    return dict(load("archive").run(spark, ArchiveOptions(profile="test", folder=str(folder), **options)).summary)


def test_what_may_go_is_copied_with_its_log_and_then_dropped(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = fill(stream, 1500)
    app = stream.app()
    app.send_many("orders", [{"young": n} for n in range(10)])
    rows, claims, attempts = table_messages(stream, topic.id), table_claims(stream), table_attempts(stream)
    plan = archive(spark, tmp_path / "lake", dry_run=True)
    assert plan["offsets"] == {"orders": 1500}
    assert table_messages(stream, topic.id) == rows
    assert not (tmp_path / "lake").exists()

    told: list[str] = []
    done = archive(spark, tmp_path / "lake", segment=1000, progress=told.append)
    assert len(done["segments"]) == 2
    assert done["copied"]["messages"] == done["dropped"]["messages"] == 1500
    left, kept = table_messages(stream, topic.id), archived(tmp_path / "lake", "orders", "messages")
    assert len(left) == 10
    assert not left.keys() & kept.keys()
    assert left | kept == rows
    assert table_claims(stream) | archived(tmp_path / "lake", "orders", "claims") == claims
    assert done["copied"]["claims"] == done["dropped"]["claims"] > 0
    story = archived(tmp_path / "lake", "orders", "attempts")
    assert table_attempts(stream) | story == attempts
    dead = set(stream.rows("SELECT `partition`, `offset` FROM ems_dead"))
    assert {place[:2] for place in table_attempts(stream)} == dead, "a dead letter keeps its story"
    assert dead and story and not dead & {place[:2] for place in story}

    frame = read_archive(spark, str(tmp_path / "lake"), "orders")
    assert frame.count() == 1500
    assert [row.kind for row in frame.select("kind").distinct().orderBy("kind").collect()] == [
        "cancelled",
        "message",
        "tombstone",
    ]
    assert archive(spark, tmp_path / "lake")["segments"] == [], "there is nothing more to do"


def test_a_copy_that_differs_is_never_dropped(
    stream: Stream, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody changes one byte in the table between the copy and the comparison."""
    topic = fill(stream, 300)
    rows = table_messages(stream, topic.id)

    def meddle(line: str) -> None:
        if "comparing" in line:
            stream.rows("UPDATE ems_message SET body = CONCAT(body, ' ') WHERE `offset` = 3 AND `partition` = 0")

    with pytest.raises(
        ArchiveDiffers, match=r"messages of orders/0, offsets 1 to \d+: the server has .* nothing was deleted"
    ):
        archive(spark, tmp_path, progress=meddle)
    assert len(table_messages(stream, topic.id)) == len(rows)
    assert archived(tmp_path, "orders", "messages") == {}
    rows = table_messages(stream, topic.id)
    assert archive(spark, tmp_path)["dropped"]["messages"] == 300, "the next run begins anew"
    assert archived(tmp_path, "orders", "messages") == rows
    assert len(list((tmp_path / "data" / "orders").iterdir())) == 1, "and removes what was left behind"


def test_the_beat_waits_and_topics_that_cannot_be_archived_are_named(
    stream: Stream, spark: Any, tmp_path: Path
) -> None:
    from emsworker.runtime.duties import trim

    topic = fill(stream, 50)
    trim(stream.session, stream.app().settings)
    assert len(table_messages(stream, topic.id)) == 50
    stream.topic("plain", retention_s=10)
    stream.topic("forever", archive_first=True)
    for name, mend in (
        ("nope", "there is no such topic"),
        ("plain", "ems topics change plain --archive-first"),
        ("forever", "ems topics change forever --retention 7d"),
    ):
        with pytest.raises(ConfigError, match=mend):
            archive(spark, tmp_path, topic=(name,))
    lock = Lock(stream.app().database, topic.id, "orders")
    with pytest.raises(ArchiveBusy, match="orders"):
        archive(spark, tmp_path)
    lock.close()


def test_hadoops_file_systems_serve_as_well(stream: Stream, spark: Any, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, f"file://{tmp_path}/lake")
    assert folder.children("x") == [] and folder.files("x") == {}
    folder.write("x/y:z/one.json", "первый")
    folder.write("x/y:z/one.json", "second")
    folder.write("x/two.json", "2")
    assert folder.read("x/y:z/one.json") == "second"
    assert folder.children("x") == ["two.json", "y:z"]
    assert folder.files("x") == {"two.json": 1, "y:z/one.json": 6}
    folder.settle("x")
    folder.remove("x/y:z")
    folder.remove("x/y:z")
    assert folder.files("") == {"x/two.json": 1}
