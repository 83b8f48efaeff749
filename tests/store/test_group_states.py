"""The state of a group in every list: it says no consumer, and that an alarm fires, instead of working."""

import json

import pytest
from click.testing import CliRunner

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.admin.standing import Standings
from emsworker.cli.main import ems
from emsworker.core.model import Group, HandlerRow, Order, Topic
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.groups import handlers
from tests.support.streams import Stream


def _state(stream: Stream, topic: Topic, group: Group, out_per_s: float | None = None) -> str:
    lags = Monitoring(Database(stream.url)).lag(10_000, topic=topic.name, group=group.name)
    rates = None if out_per_s is None else {group.id: out_per_s}
    return str(Standings(Database(stream.url)).states(lags, rates)[group.id])


def _age(stream: Stream) -> None:
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 20 SECOND")


def test_a_group_without_a_consumer_does_not_work(stream: Stream) -> None:
    topic = stream.topic("orders")
    group = stream.group(topic, "billing")
    assert _state(stream, topic, group) == "idle"
    stream.app().send_many("orders", range(3))
    assert _state(stream, topic, group) == "no consumer", "nobody is alive"
    client = stream.client()
    assert _state(stream, topic, group) == "working", "it has just been sent"
    _age(stream)
    assert _state(stream, topic, group) == "no consumer", "who is alive works for others"
    assert _state(stream, topic, group, out_per_s=0.1) == "working", "between two messages"
    Admin(Database(stream.url)).change_topic("orders", rule="w")
    assert _state(stream, topic, group) == "paused"
    Admin(Database(stream.url)).change_topic("orders", rule="rw")
    stream.take(topic, group, client)
    assert _state(stream, topic, group) == "working"
    Admin(Database(stream.url)).change_group("orders", "billing", paused=True)
    assert _state(stream, topic, group) == "paused"


def test_a_group_whose_tags_no_live_worker_has_says_which(stream: Stream) -> None:
    topic = stream.topic("media")
    group = stream.group(topic, "workers-gpu")
    handlers.declare(stream.session, group.id, [HandlerRow("render", "retry", None, None, "eu,gpu")])
    stream.app().send_many("media", range(3))
    assert _state(stream, topic, group) == "no worker with tags eu and gpu", "nobody is alive"
    clients.register(stream.session, ["other"], "p", "w", 60.0, tags=["gpu"])
    _age(stream)
    assert _state(stream, topic, group) == "no worker with tags eu and gpu"
    clients.register(stream.session, ["right"], "p", "w", 60.0, tags=["eu", "gpu", "large"])
    assert _state(stream, topic, group) == "no consumer", "it is there, and does something else"
    handlers.declare(stream.session, group.id, [HandlerRow("render2", "retry", None, None, "")])
    assert {row.requires for row in handlers.list_handlers(stream.session, group.id).values()} == {""}


def test_a_group_that_waits_for_a_permit_has_a_consumer(stream: Stream) -> None:
    topic = stream.topic("orders")
    group = stream.group(topic, "billing")
    stream.app().send_many("orders", range(3))
    stream.take(topic, group, stream.client())
    _age(stream)
    stream.rows("UPDATE ems_claim SET state = 'waiting', client_id = NULL")
    assert _state(stream, topic, group) == "no consumer"
    stream.rows("UPDATE ems_claim SET not_before = NOW(6) + INTERVAL 1 MINUTE")
    assert _state(stream, topic, group) == "working"


@pytest.mark.parametrize(("order", "state"), [(Order.NONE, "no consumer"), (Order.KEY, "working")])
def test_an_ordered_group_may_wait_for_a_retry(stream: Stream, order: Order, state: str) -> None:
    topic = stream.topic("orders")
    group = stream.group(topic, "billing", order=order)
    stream.app().send_many("orders", range(3))
    stream.client()
    _age(stream)
    stream.rows(
        "INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) "
        f"VALUES ({group.id}, 0, 1, 1, NOW(6) + INTERVAL 1 HOUR)"
    )
    assert _state(stream, topic, group) == state


def test_every_list_tells_of_alarms_that_fire(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMS_URL", stream.url)
    topic = stream.topic("orders")
    group = stream.group(topic, "billing")
    stream.app().send_many("orders", range(3))
    Admin(Database(stream.url)).alarms.create("late", on="lag", above=1)
    stream.rows(
        "INSERT INTO ems_alarm (rule, topic, group_name, alarm_id, state, value, since, fired_at) "
        "VALUES ('late', 'orders', 'billing', REPEAT('a', 16), 'firing', 3, NOW(6), NOW(6))"
    )
    for command in (["groups", "list"], ["groups", "list", "orders"], ["top", "--once"]):
        (row,) = json.loads(CliRunner().invoke(ems, [*command, "--json"]).stdout)
        assert (row["state"], row["alarms"]) == ("no consumer, alarm", ["late"])
        assert "no consumer, alarm" in CliRunner().invoke(ems, command).stdout
    stream.client()
    assert _state(stream, topic, group) == "alarm"
    Admin(Database(stream.url)).reset_group("orders", "billing", "latest")
    assert _state(stream, topic, group) == "alarm", "also of a group that has nothing to do"


def test_lists_are_bounded_and_say_so(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMS_URL", stream.url)
    for number in range(5):
        topic = stream.topic(f"orders.{number}")
        stream.group(topic, "billing")
        stream.app().send_many(topic.name, range(number))
    for command, told in (
        (["groups", "list"], "The 2 of 5 groups with the most lag; --limit shows more."),
        (["topics", "list"], "The 2 of 5 topics that are longest; --limit shows more."),
        (["top", "--once"], "The 2 of 5 groups that are first by lag; --limit shows more."),
    ):
        done = CliRunner().invoke(ems, [*command, "--limit", "2", "--json"])
        assert {row["topic"] for row in json.loads(done.stdout)} == {"orders.3", "orders.4"}, command
        assert told in done.stderr
        assert "--limit" not in CliRunner().invoke(ems, [*command, "--limit", "5"]).stderr
