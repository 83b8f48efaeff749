"""The job ``archive``: everything that it drops is in the archive; test_archive_kills.py kills it."""

import threading
from pathlib import Path
from typing import Any

import pytest

from emsworker.beat.retention import trim
from emsworker.core.errors import ConfigError
from emsworker.core.model import Group, Topic
from emsworker.core.partitioner import partition_of
from emsworker.publish.outgoing import Outgoing
from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.archive import ArchiveOptions
from emsworker.spark.jobs.archive.reading import ArchiveDiffers, read_archive
from emsworker.spark.jobs.archive.rows import ArchiveBusy, Lock
from emsworker.spark.jobs.folder import HadoopFolder
from emsworker.store import topics
from emsworker.store.groups import claims, dead, progress
from tests.spark.archives import archived, fill, table_attempts, table_claims, table_messages
from tests.support.streams import Stream, flush_of


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


def test_what_a_dead_letter_kept_goes_into_the_archive_when_it_is_none_any_more(
    stream: Stream, spark: Any, tmp_path: Path
) -> None:
    topic = fill(stream, 1500)
    rows, attempts = table_messages(stream, topic.id), table_attempts(stream)
    archive(spark, tmp_path)
    group, me = topics.list_groups(stream.session)[0], stream.client(lease_s=3600)
    (first, second), *others = sorted(stream.rows("SELECT `partition`, `offset` FROM ems_dead"))
    again, deleted = (first, second), others[0]
    assert dead.requeue(stream.session, group, [again], lambda places: None) == 1
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and [message.offset for message in retry.messages] == [second]
    progress.flush(stream.session, flush_of(retry, topic, second, done_offsets=[(second, 1, 7)]))
    assert dead.delete_dead(stream.session, group, [deleted], lambda places: None) == 1
    attempts |= table_attempts(stream)
    trim(stream.session, stream.app().settings)
    assert attempts == archived(tmp_path, "orders", "attempts") | table_attempts(stream), "the beat waits for the job"

    for partition in (again[0], deleted[0]):
        grow_old(stream, topic, group, partition)
    done = archive(spark, tmp_path)
    kept = archived(tmp_path, "orders", "attempts")
    assert done["copied"] == done["dropped"]
    assert kept | table_attempts(stream) == attempts and not kept.keys() & table_attempts(stream).keys()
    assert {again, deleted} <= {place[:2] for place in kept}
    assert {place[:2] for place in table_attempts(stream)} == set(others[1:])
    assert stream.rows("SELECT * FROM ems_restored") == [] and table_messages(stream, topic.id) == {}
    assert rows.items() <= archived(tmp_path, "orders", "messages").items()


def grow_old(stream: Stream, topic: Topic, group: Group, partition: int) -> None:
    """One more message of a partition, which has been run and may go."""
    key = next(f"k{number}" for number in range(100) if partition_of(f"k{number}".encode(), 2) == partition)
    stream.app().send_many("orders", [Outgoing("orders", {"more": partition}, key=key)])
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL 1 DAY WHERE born_at > NOW(6) - INTERVAL 1 HOUR")
    claim = stream.take(topic, group, stream.client(lease_s=3600), 500, partition)
    progress.flush(stream.session, flush_of(claim, topic, claim.hi, finished=True))


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
    topic = fill(stream, 50)
    trim(stream.session, stream.app().settings)
    assert len(table_messages(stream, topic.id)) == 50
    stream.topic("plain", retention_s=10)
    stream.topic("forever", archive_first=True)
    for name, fix in (
        ("nope", "there is no such topic"),
        ("plain", "ems topics change plain --archive-first"),
        ("forever", "ems topics change forever --retention 7d"),
    ):
        with pytest.raises(ConfigError, match=fix):
            archive(spark, tmp_path, topic=(name,))
    lock = Lock(stream.app().stream.database, topic.id, "orders")
    with pytest.raises(ArchiveBusy, match="orders"):
        archive(spark, tmp_path)
    lock.close()


def test_a_job_waits_until_the_server_has_noticed_the_end_of_the_last_one(stream: Stream) -> None:
    database, topic = stream.app().stream.database, stream.topic("orders")
    last = Lock(database, topic.id, "orders")
    noticed = threading.Timer(1.0, last.close)
    noticed.start()
    Lock(database, topic.id, "orders").close()
    noticed.join()


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
