"""Leaving out a backlog: once or by policy, above a lag limit, older than a time; counted and never silent."""

import logging
import re

import pytest

from emsworker.admin import Admin, SkipPolicy
from emsworker.admin.monitoring import Monitoring
from emsworker.beat.services import LedStream, leader_services
from emsworker.beat.skip_policies import skip_backlogs
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError
from emsworker.core.model import Group, Topic
from emsworker.monitoring import StreamMetrics
from emsworker.store import topics
from emsworker.store.groups import claims, cursors, skipping
from tests.docs.snippets import ROOT
from tests.support.streams import Stream, offsets

COUNT = 30


@pytest.fixture
def topic(stream: Stream) -> Topic:
    """30 messages in each of two partitions: the nth was born 31 - n minutes ago."""
    topic = stream.topic(partitions=2)
    for partition in (0, 1):
        stream.app().send_many("t", range(COUNT), partition=partition)
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL (31 - `offset`) * 60 SECOND")
    return topic


@pytest.fixture
def group(stream: Stream, topic: Topic) -> Group:
    return stream.group(topic)


def skips(stream: Stream) -> list[tuple[object, ...]]:
    return stream.rows("SELECT `partition`, lo, hi, reason FROM ems_skip ORDER BY skipped_at, `partition`, lo")


def test_what_each_policy_passes_over(stream: Stream, group: Group) -> None:
    backlogs = Admin(stream.app()).backlogs
    for policy, to in (
        (SkipPolicy(100), 1),
        (SkipPolicy(0), 31),
        (SkipPolicy(10), 21),
        (SkipPolicy(older_s=630.0), 21),
        (SkipPolicy(older_s=3600.0), 1),
        (SkipPolicy(older_s=1.0), 31),
        (SkipPolicy(20, 630.0), 11),
        (SkipPolicy(5, 630.0), 21),
    ):
        planned = backlogs.skip("t", "g", policy, dry_run=True)
        assert [(one.partition, one.to) for one in planned] == ([(0, to), (1, to)] if to > 1 else []), policy
    assert [stream.cursor(group, n) for n in (0, 1)] == [1, 1] and skips(stream) == [], "a dry run changes nothing"


def test_a_skip_is_counted_written_down_and_touches_no_other_group(stream: Stream, topic: Topic, group: Group) -> None:
    other, me, app = stream.group(topic, "other"), stream.client(), stream.app()
    claim = stream.take(topic, group, me, 5)
    made = Admin(app).backlogs.skip("t", "g", SkipPolicy(20), partition=0)
    assert [(one.cursor, one.to, one.count) for one in made] == [(6, 11, 5)]
    assert (offsets(claim), offsets(stream.take(topic, group, me, 5))) == ([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
    assert [stream.cursor(one, n) for one in (group, other) for n in (0, 1)] == [16, 1, 1, 1]
    assert skips(stream) == [(0, 6, 10, "skip: more than 20 waiting")]
    Admin(app).reset_group("t", "g", "latest", partition=1)
    lag = {one.group.name: one for one in Monitoring(app).lag()}
    assert (lag["g"].skipped, lag["other"].skipped, lag["g"].unclaimed) == (35, 0, 15)
    assert [one.skipped for one in lag["g"].partitions] == [5, 30]
    samples = {
        (sample.name, sample.labels.get("group")): sample.value
        for family in StreamMetrics(app).collect()
        for sample in family.samples
    }
    page = (ROOT / "docs/reference/events.md").read_text()
    assert {name for name, _ in samples} == set(re.findall(r"^\| `(ems_(?:groups?|publish)_\w+)`", page, re.MULTILINE))
    assert samples["ems_group_skipped_total", "g"] == 35 and samples["ems_group_unclaimed", "other"] == 60


def test_the_beat_goes_by_the_policies(
    stream: Stream, topic: Topic, group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    paused = stream.group(topic, "paused")
    assert skip_backlogs in leader_services(LedStream())
    admin = Admin(stream.app())
    admin.change_group("t", "paused", paused=True)
    for name in ("g", "paused"):
        admin.backlogs.set_policy("t", name, SkipPolicy(20, 630.0))
    assert admin.backlogs.policies() == {one.id: SkipPolicy(20, 630.0) for one in (group, paused)}
    with caplog.at_level(logging.WARNING):
        assert skip_backlogs(stream.session, Settings(beat_s=2.0)) == 10.0
    assert (
        "group g of topic t skipped 10 messages of partition 1 (1 to 10): more than 20 waiting and older" in caplog.text
    )
    assert [stream.cursor(one, n) for one in (group, paused) for n in (0, 1)] == [11, 11, 1, 1]
    caplog.clear()
    skip_backlogs(stream.session, Settings())
    assert caplog.text == "" and len(skips(stream)) == 2
    admin.backlogs.set_policy("t", "g", SkipPolicy(older_s=310.0))
    skip_backlogs(stream.session, Settings())
    assert [stream.cursor(group, n) for n in (0, 1)] == [26, 26]
    admin.backlogs.set_policy("t", "g", SkipPolicy())
    admin.delete_group("t", "paused")
    assert admin.backlogs.policies() == {} and stream.rows("SELECT * FROM ems_skip_policy") == []
    skipping.set_policy(stream.session, paused, SkipPolicy(1))
    assert stream.rows("SELECT * FROM ems_skip_policy") == [], "a deleted group gets none"


def test_only_low_priorities_are_dropped(stream: Stream) -> None:
    app = stream.app()
    admin = Admin(app)
    stream.group(admin.create_topic("p", priorities=10), "g")
    for priority in (0, 4, 5, 9):
        app.send_many("p", range(10), priority=priority)
    policy = SkipPolicy(most_waiting=3, below_priority=5)
    admin.backlogs.set_policy("p", "g", policy)
    skip_backlogs(stream.session, Settings())
    assert skips(stream) == [(n, 1, 7, "skip: more than 3 waiting and below priority 5") for n in (0, 4000)]
    assert [one.partition for one in admin.backlogs.skip("p", "g", SkipPolicy(0), dry_run=True)] == [
        0,
        4000,
        5000,
        9000,
    ]
    stream.group(stream.topic("plain"), "g")
    with pytest.raises(ConfigError, match="--priorities 10"):
        admin.backlogs.set_policy("plain", "g", policy)
    for wrong, why in (
        (SkipPolicy(1, below_priority=10), "from 1 to 9"),
        (SkipPolicy(below_priority=5), "most_waiting"),
    ):
        with pytest.raises(ConfigError, match=why):
            admin.backlogs.skip("p", "g", wrong)


def test_workers_that_are_quicker_are_not_thrown_back(stream: Stream, topic: Topic, group: Group) -> None:
    plan = skipping.plan_skips(stream.session, group, SkipPolicy(20))
    claimed = offsets(stream.take(topic, group, stream.client(), 15, partition=0))
    claim = claims.take_range(stream.session, stream.claimant(topic, group, stream.client(), 4), 1, wait=True)
    assert claim and claimed == list(range(1, 16))
    made = skipping.make_skips(stream.session, group, plan, SkipPolicy(20))
    assert [(one.partition, one.cursor, one.to) for one in made] == [(1, 5, 11)]
    assert [stream.cursor(group, n) for n in (0, 1)] == [16, 11]
    topics.delete_group(stream.session, group, force=True)
    assert cursors.skip_to(stream.session, group, 0, 30, "gone") == 0


def test_wrong_policies(stream: Stream, group: Group) -> None:
    backlogs = Admin(stream.app()).backlogs
    with pytest.raises(ConfigError, match=r"most_waiting = -1.*older_s = -2"):
        backlogs.set_policy("t", "g", SkipPolicy(-1, -2.0))
    with pytest.raises(ConfigError, match="most_waiting"):
        backlogs.skip("t", "g", SkipPolicy())
    with pytest.raises(ConfigError, match="partition = 7"):
        backlogs.skip("t", "g", SkipPolicy(1), partition=7)
