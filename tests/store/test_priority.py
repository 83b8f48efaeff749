"""A priority goes with its message into partitions of its own, on every way into the stream."""

import pytest

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.core.errors import ConfigError, InvalidPriority
from emsworker.core.model import Claim
from emsworker.store.cluster import schedules
from emsworker.store.groups import claims, progress
from emsworker.store.groups.claims import find_work
from emsworker.store.stream import outbox
from emsworker.tasks.periodic import declare_schedules
from tests.support.streams import AppFactory, Stream, failed, flush_of, stored


def test_each_level_has_partitions_and_keeps_its_order(new_app: AppFactory, stream: Stream) -> None:
    app = new_app(priorities=10)
    receipts = [app.send("t", number, priority=priority, key="k") for number in range(3) for priority in (None, 7, 9)]
    assert [receipt.partition for receipt in receipts] == [0, 7000, 9000] * 3
    assert stored(stream, "t") == {0: [1, 2, 3], 7000: [1, 2, 3], 9000: [1, 2, 3]}
    assert {receipt.partition for receipt in app.send_many("t", range(5), priority=4)} == {4000}


def test_few_levels_share_the_priorities(stream: Stream) -> None:
    app = stream.app()
    Admin(app).create_topic("t", priorities=3, partitions=2)
    assert [app.send("t", 1, priority=p, partition=1).partition for p in range(10)] == [1] * 4 + [4001] * 3 + [7001] * 3


def test_a_topic_without_levels_refuses_a_priority_and_says_how_to_give_it_some(stream: Stream) -> None:
    app = stream.app()
    app.send("t", 1)
    with pytest.raises(InvalidPriority, match="ems topics change t --priorities 10"):
        app.send("t", 2, priority=0)
    assert stored(stream, "t") == {0: [1]}
    group = stream.group(Admin(app).topic("t"))
    Admin(app).change_topic("t", priorities=10, partitions=2)
    app.stream.catalog.forget("t")
    assert app.send("t", 3, priority=9, partition=1).partition == 9001
    assert find_work(stream.session, [group.id]).work[group.id].partitions == (0, 9001), "old groups see new levels"


def test_levels_with_messages_are_never_taken_away(stream: Stream) -> None:
    admin = Admin(stream.app())
    admin.create_topic("t", priorities=3)
    for wrong, told in (
        (1, "would lose a level"),
        (2, "0, 4, 7; 10 keeps all"),
        (11, "from 1 to 10"),
        (0, "from 1 to"),
    ):
        with pytest.raises(ConfigError, match=told):
            admin.change_topic("t", priorities=wrong)
    assert admin.change_topic("t", priorities=10).priorities == 10


def test_delayed_and_transactional_messages_keep_theirs(new_app: AppFactory, stream: Stream) -> None:
    app = new_app(priorities=10)
    app.send("t", "later", priority=8, countdown=0.01, key="k")
    with app.transaction() as transaction:
        transaction.send("t", "mine", priority=3)
    with stream.other() as connection:
        app.send("t", "foreign", priority=5, transaction=connection)
        connection.commit()
    while stream.value("SELECT COUNT(*) FROM ems_outbox"):
        outbox.relay_due(stream.session, 100)
    assert stored(stream, "t") == {3000: [1], 5000: [1], 8000: [1]}
    assert b'"ems-priority":"8"' in stream.value("SELECT headers FROM ems_message WHERE `partition` = 8000")


def test_a_periodic_task_has_its_priority(stream: Stream) -> None:
    app = stream.app(priorities=10)

    @app.periodic(every=3600.0)
    @app.task(name="tick", priority=6)
    def tick() -> None: ...

    declare_schedules(app.stream, app.settings, app.registry.schedules.values())
    stream.rows("UPDATE ems_schedule SET next_at = next_at - INTERVAL 1 HOUR")
    assert schedules.fire(stream.session, ["tick"], 60.0).slots == 1
    outbox.relay_due(stream.session, 100)
    assert stored(stream, "default") == {6000: [1]}


def test_a_retry_stays_what_it_was_and_the_trace_tells(stream: Stream) -> None:
    app = stream.app(priorities=10)
    receipt = app.send("t", 1, priority=9)
    topic = Admin(app).topic("t")
    group, me = stream.group(topic), stream.client()
    claim = stream.take(topic, group, me, partition=9000)
    assert [message.priority for message in claim.messages] == [9]
    progress.flush(stream.session, flush_of(claim, topic, 1, failures=(failed(1),)))
    again = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert isinstance(again, Claim)
    assert (again.partition, again.messages[0].priority, again.messages[0].attempt) == (9000, 9, 2)
    (trace,) = Monitoring(app).trace(receipt.id)
    assert (trace.partition, trace.headers["ems-priority"]) == (9000, "9")


def test_of_given_back_claims_those_of_the_highest_level_are_adopted_in_their_order(stream: Stream) -> None:
    app = stream.app(priorities=10)
    for priority in (0, 9):
        app.send_many("t", range(4), priority=priority)
    topic = Admin(app).topic("t")
    group, me = stream.group(topic), stream.client()
    for partition in (0, 9000, 9000):
        claim = stream.take(topic, group, me, 2, partition)
        progress.give_back(stream.session, flush_of(claim, topic, claim.lo - 1), claim.lo - 1)
    assert find_work(stream.session, [group.id]).work[group.id].highest_waiting == 9000

    def adopt(from_partition: int) -> tuple[int, int] | None:
        claimant = stream.claimant(topic, group, me, 2)
        claim = claims.take_waiting(stream.session, claimant, from_partition=from_partition)
        return (claim.partition, claim.lo) if isinstance(claim, Claim) else None

    assert [adopt(9000), adopt(9000), adopt(9000), adopt(0)] == [(9000, 1), (9000, 3), None, (0, 1)]


def test_a_whole_topic_is_counted_purged_and_deleted(stream: Stream) -> None:
    app = stream.app(priorities=10)
    admin = Admin(app)
    for priority in range(10):
        app.send("t", 1, priority=priority)
    group = stream.group(admin.topic("t"))
    assert admin.count_messages(admin.topic("t")) == 10
    assert Monitoring(app).lag()[0].unclaimed == 10
    assert len(admin.reset_group("t", group.name, "latest", dry_run=True)) == 10
    assert admin.purge_topic("t").messages == 10
    admin.delete_topic("t")
    for table in ("ems_topic", "ems_partition", "ems_cursor", "ems_message"):
        assert stream.value(f"SELECT COUNT(*) FROM {table}") == 0
