"""The jobs ``restore`` and ``replay``: what was archived comes back, once, in order, and tells where it came from."""

from pathlib import Path
from typing import Any

import pytest

from emsworker.core.errors import ConfigError
from emsworker.core.model import Group, Topic
from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.archive import ArchiveOptions
from emsworker.spark.jobs.archive.choosing import read_offsets
from emsworker.spark.jobs.archive.replay import ReplayOptions
from emsworker.spark.jobs.archive.restore import RestoreOptions
from emsworker.spark.jobs.reading import read_time
from emsworker.store import topics
from emsworker.store.groups import claims, progress
from emsworker.store.stream import retention
from tests.spark.archives import Message, fill, messages, without_marks
from tests.support.streams import Stream, flush_of


def archive(spark: Any, folder: Path) -> None:
    load("archive").run(spark, ArchiveOptions(profile="test", folder=str(folder)))


def restore(spark: Any, folder: Path, **options: Any) -> dict[str, Any]:
    chosen = RestoreOptions(profile="test", folder=str(folder), topic="orders", **options)
    return dict(load("restore").run(spark, chosen).summary)


def replay(spark: Any, folder: Path, **options: Any) -> dict[str, Any]:
    chosen = ReplayOptions(profile="test", folder=str(folder), topic="orders", **options)
    return dict(load("replay").run(spark, chosen).summary)


def test_what_was_archived_comes_back_in_another_topic_once(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = fill(stream, 1200)
    original = messages(stream, topic.id)
    places = stream.rows("SELECT `partition`, `offset`, HEX(uid) FROM ems_message WHERE kind = 'message' ORDER BY 1, 2")
    archive(spark, tmp_path)
    copy = stream.topic("copy", partitions=2)
    count = sum(map(len, original.values()))
    assert restore(spark, tmp_path, to="copy", keep_partitions=True, dry_run=True)["messages"] == count
    assert messages(stream, copy.id) == {}
    for already in (False, True):
        done = restore(spark, tmp_path, to="copy", keep_partitions=True)
        assert (done["messages"], done["already_done"]) == (count, already)
        found = messages(stream, copy.id)
        assert without_marks(found) == original
    told = [row[3]["ems-restored-from"] for partition in sorted(found) for row in found[partition]]
    assert told == [f"orders/{partition}/{offset}" for partition, offset, _ in places]
    ids = [
        row[3]["ems-restored-id"].replace("-", "").upper() for partition in sorted(found) for row in found[partition]
    ]
    assert ids == [uid for _, _, uid in places]


def test_some_of_them_are_chosen(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = fill(stream, 400)
    original = messages(stream, topic.id)
    stream.rows("UPDATE ems_message SET born_at = '2026-11-01 12:00:00.000001' WHERE `offset` = 7 AND `partition` = 0")
    archive(spark, tmp_path)

    def restored(name: str, **options: Any) -> list[Message]:
        made = stream.topic(name)
        restore(spark, tmp_path, to=name, **options)
        return without_marks(messages(stream, made.id)).get(0, [])

    everything = original[0] + original[1]
    assert restored("keyed", key="k1") == [row for row in everything if row[0] == b"k1"]
    assert restored("red", tag="red", partition=1) == [row for row in original[1] if row[1] == b"red"]
    days = {"since": read_time("2026-11-01T12:00:00Z"), "until": read_time("2026-11-01T12:00:01Z")}
    assert len(restored("timely", **days)) == 1
    assert len(restored("ranged", offsets=read_offsets("1-4"))) == 8
    assert len(restored("asked", where="offset = 9 AND partition = 1")) == 1
    for options, fix in (
        ({"to": "nope"}, "ems topics create nope"),
        ({"to": "keyed", "keep_partitions": True}, "has no partition 1"),
        ({"to": "keyed", "where": "no_such = 1"}, "is no condition on the columns"),
    ):
        with pytest.raises(ConfigError, match=fix):
            restore(spark, tmp_path, **options)


def run_again(stream: Stream, topic: Topic, group: Group) -> list[tuple[int, bytes]]:
    """What a worker of the group gets to run, and runs."""
    me, found = stream.client(), []
    while taken := claims.take_retries(stream.session, stream.claimant(topic, group, me, 50)):
        found += [(message.offset, message.raw) for message in taken.messages]
        done = [(message.offset, 1, 7) for message in taken.messages]
        progress.flush(stream.session, flush_of(taken, topic, taken.hi, done_offsets=done))
    return found


def test_one_group_runs_archived_messages_again_and_no_other(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = fill(stream, 300, partitions=1)
    group, other = stream.group(topic), stream.group(topic, "other")
    me = stream.client()
    while stream.cursor(other) <= 300:
        claim = stream.take(topic, other, me)
        progress.flush(stream.session, flush_of(claim, topic, claim.hi))
    bodies = dict(stream.rows("SELECT `offset`, body FROM ems_message WHERE kind = 'message'"))
    archive(spark, tmp_path)
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0
    wanted = [offset for offset in range(10, 121) if offset in bodies]
    assert replay(spark, tmp_path, group="g", offsets=(10, 120), dry_run=True)["messages"] == len(wanted)
    done = replay(spark, tmp_path, group="g", offsets=(10, 120))
    assert (done["again"], done["waiting"], done["kept"], done["conflicts"]) == (len(wanted), 0, 0, 0)
    again = replay(spark, tmp_path, group="g", offsets=(10, 120))
    assert again["again"] == 0, "the same job is done"
    assert [(one["messages"], one["earlier"]) for one in (done, again)] == [(len(wanted), 0), (len(wanted),) * 2]
    twice = replay(spark, tmp_path, group="g", offsets=(10, 120), job="anew")
    assert (twice["again"], twice["waiting"]) == (0, len(wanted)), "what waits is not doubled"

    retries = stream.rows("SELECT group_id, `offset`, attempt FROM ems_retry ORDER BY due_at, `offset`")
    assert retries == [(group.id, offset, 0) for offset in wanted]
    found = stream.rows("SELECT `offset`, body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    assert found == [(offset, bodies[offset]) for offset in wanted]
    assert run_again(stream, topic, group) == found
    assert stream.retries(group) == []
    while retention.delete_restored(stream.session, topic.id, retention.list_restored(stream.session, topic.id)):
        pass
    assert stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0, "and then they go again"


def test_a_replay_names_what_is_not_there(stream: Stream, spark: Any, tmp_path: Path) -> None:
    topic = fill(stream, 20, partitions=1)
    with pytest.raises(ConfigError, match=r"folder = .*: there is no archive in it"):
        replay(spark, tmp_path, group="g")
    archive(spark, tmp_path)
    with pytest.raises(ConfigError, match="no such group"):
        replay(spark, tmp_path, group="nope")
    with pytest.raises(ConfigError, match=r"the archive in .* has orders"):
        load("replay").run(spark, ReplayOptions(profile="test", folder=str(tmp_path), topic="x", group="g"))
    topics.delete_topic(stream.session, topic, force=True)
    with pytest.raises(ConfigError, match="use restore"):
        replay(spark, tmp_path, group="g")
