"""Groups and topics ranked: from the latest samples what reading them anew says, and anew where that is right."""

from dataclasses import replace

import pytest

from emsworker.admin import standing
from emsworker.admin.monitoring import GroupLag, Monitoring
from emsworker.admin.standing import GroupStanding, Standings
from emsworker.beat.samples import TakeSamples
from emsworker.core.config import Settings
from emsworker.store import topics
from emsworker.store.engine.database import Database
from emsworker.store.inspect.latest import GroupChoice
from tests.support.streams import Stream


@pytest.fixture
def busy(stream: Stream) -> Stream:
    """Topics and groups in every state: behind, paused, in retry, idle, and one topic that another server keeps."""
    app = stream.app()
    for number, name in enumerate(("a.orders", "b.orders", "c.mail")):
        topic = stream.topic(name, partitions=1 + number)
        for group in ("one", "two"):
            stream.group(topic, group)
        app.send_many(name, range(10 * (number + 1)))
    first = app.stream.catalog.topic("a.orders")
    taken = next(one for one in topics.list_groups(stream.session, topic_id=first.id) if one.name == "one")
    stream.take(first, taken, stream.client(), batch=4)
    last = app.stream.catalog.topic("c.mail")
    two = next(one for one in topics.list_groups(stream.session, topic_id=last.id) if one.name == "two")
    stream.rows(f"UPDATE ems_group SET paused = 1 WHERE id = {two.id}")
    stream.rows(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) "
        f"VALUES ({two.id}, 0, 1, 1, NOW(6) + INTERVAL 1 HOUR)"
    )
    topics.create_topic(stream.session, "d.elsewhere", server="east")
    return stream


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any stream counts as one of very many groups."""
    monkeypatch.setattr(standing, "FEW", 0)


def lines(found: GroupStanding) -> list[GroupLag]:
    """The groups without what only reading them anew tells."""
    return [replace(one, partitions=(), oldest_age_s=round(one.oldest_age_s or 0.0, -2)) for one in found.groups]


@pytest.mark.usefixtures("many")
def test_samples_say_what_reading_anew_says(busy: Stream) -> None:
    standings = Standings(Database(busy.url))
    assert standings.groups().age_s is None, "there is no sample yet"
    TakeSamples()(busy.session, Settings())
    for text in ("", "orders", "a.orders/one", "_", "A.ORDERS"):
        for choice in (None, *GroupChoice):
            kept, exact = (standings.groups(text=text, choice=choice, exact=exact) for exact in (False, True))
            assert exact.age_s is None and kept.age_s is not None and 0 <= kept.age_s < 60
            assert lines(kept) == lines(exact), (text, choice)
            assert kept.count == exact.count
            totals = [sums(one) for one in (kept, exact)]
            assert totals[0] == totals[1]
    kept, exact = standings.groups(2), standings.groups(2, exact=True)
    assert lines(kept) == lines(exact) and len(kept.groups) == 2 and kept.count == exact.count == 6
    assert standings.groups(2, text="orders").count is None and standings.groups(4, text="orders").count == 4


def sums(found: GroupStanding) -> tuple[object, ...]:
    """The sums but for what only one of the two ways knows."""
    total = found.total
    return (
        total.lag,
        total.running,
        total.retries,
        total.dead,
        round(total.oldest_s or 0, -2),
        total.topics,
        total.groups,
    )


@pytest.mark.usefixtures("many")
def test_topics_by_samples(busy: Stream) -> None:
    standings = Standings(Database(busy.url))
    TakeSamples()(busy.session, Settings())
    for text in ("", "orders", "_"):
        kept, exact = standings.topics(10, text=text), standings.topics(10, text=text, exact=True)
        assert [(one.topic.name, one.messages, one.bytes_estimate) for one in kept.topics] == [
            (one.topic.name, one.messages, one.bytes_estimate) for one in exact.topics
        ]
        assert {name: kept.groups[name] for name in exact.groups if text in name} == +kept.groups
    every = standings.topics()
    assert [(one.topic.name, one.messages, one.bytes_estimate) for one in every.topics] == [
        ("c.mail", 30, None), ("b.orders", 20, None), ("a.orders", 10, None), ("d.elsewhere", 0, None),
    ]  # fmt: skip


@pytest.mark.usefixtures("many")
def test_what_is_deleted_is_gone_at_once_and_what_is_new_after_a_round(busy: Stream) -> None:
    standings, take = Standings(Database(busy.url)), TakeSamples()
    take(busy.session, Settings())
    topic = topics.list_topics(busy.session)[1]
    topics.delete_topic(busy.session, topic, lambda rows: None, force=True)
    assert {one.topic.name for one in standings.groups().groups} == {"a.orders", "c.mail"}
    assert "b.orders" not in {one.topic.name for one in standings.topics().topics}
    busy.group(busy.topic("new"), "g")
    assert "new" not in {one.topic.name for one in standings.groups().groups}
    TakeSamples()(busy.session, Settings())  # of another leader
    assert "new" in {one.topic.name for one in standings.groups().groups}
    assert busy.value("SELECT COUNT(*) FROM ems_latest WHERE topic_id = %s", topic.id) == 0
    # This leader's round: what the other has written meanwhile, and what is deleted now.
    last = topics.list_topics(busy.session)[0]
    topics.delete_topic(busy.session, last, lambda rows: None, force=True)
    take(busy.session, Settings())
    assert busy.value("SELECT COUNT(*) FROM ems_latest WHERE topic_id = %s", last.id) == 0


def test_few_groups_and_old_samples_are_read_anew(busy: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    standings = Standings(Database(busy.url))
    TakeSamples()(busy.session, Settings())
    assert standings.groups().age_s is None and standings.topics().age_s is None, "there are few"
    monkeypatch.setattr(standing, "FEW", 19)
    assert standings.groups().age_s is None, "7 partitions and 12 groups x partitions are not more than 19"
    monkeypatch.setattr(standing, "FEW", 18)
    assert standings.groups().age_s is not None
    busy.rows("UPDATE ems_latest SET sampled_at = sampled_at - INTERVAL 301 SECOND")
    assert standings.groups().age_s is None, "no beat takes samples"


def test_the_lag_of_one_topic_or_group_is_that_of_all(busy: Stream) -> None:
    monitoring = Monitoring(Database(busy.url))
    for most in (None, 100):
        every = [replace(one, oldest_age_s=None) for one in monitoring.lag(most)]
        for topic in ("a.orders", "c.mail"):
            own = [replace(one, oldest_age_s=None) for one in monitoring.lag(most, topic=topic)]
            assert own == [one for one in every if one.topic.name == topic] and len(own) == 2
            (one,) = monitoring.lag(most, topic=topic, group="two")
            assert replace(one, oldest_age_s=None) == own[1]
    assert monitoring.lag(topic="d.elsewhere") == []
