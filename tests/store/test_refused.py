"""What a caller gets wrong writes nothing, on a real stream: no message, nothing for later, not even a topic."""

import math
from typing import Any

import pytest

from emsworker import ConfigError, Ems, EmsError
from emsworker.admin import Admin, Selection, SkipPolicy
from emsworker.admin.monitoring import Monitoring
from tests.support.streams import Stream

WRONG: list[dict[str, Any]] = [
    {"countdown": "soon"}, {"countdwn": 3}, {"delay": -1}, {"eta": 5}, {"priority": "high"}, {"key": 3.5}, {"tag": 5},
    {"headers": {"a": 1}}, {"partition": "x"}, {"serializer": "jsn"}, {"compression": "zip"}, {"uid": "x"},
    {"dedup_key": 3.5}, {"dedup_key": "k", "dedup_window": "long"}, {"tag": "x" * 256},
]  # fmt: skip


def test_a_wrong_send_leaves_nothing_behind(stream: Stream, app: Ems) -> None:
    task = app.task(name="f", topic="t")(lambda: None)
    for options in WRONG:
        with pytest.raises(EmsError):
            app.send("t", 1, **options)
        with pytest.raises(EmsError):
            app.send_many("t", [1, 2], **options)
        with pytest.raises(EmsError), app.transaction() as tx:
            tx.send("t", 1, **options)
    for wrong in (lambda: task.delay(1, 2, 3), lambda: app.send("t", [math.nan]), lambda: task.apply_async("x")):
        with pytest.raises(EmsError):
            wrong()
    assert stream.rows("SELECT * FROM ems_topic") == []
    assert stream.rows("SELECT * FROM ems_outbox") == []
    with pytest.raises(ConfigError, match="did you mean 'countdown'"), app.transaction() as tx:
        tx.send("t", 1)
        tx.send("t", 2, countdwn=3)
    assert stream.rows("SELECT * FROM ems_message WHERE `offset` > 0") == stream.rows("SELECT * FROM ems_outbox") == []


def test_an_administrator_is_told_what_is_wrong(stream: Stream, app: Ems) -> None:
    app.send("t", 1)
    admin: Any = Admin(app)
    select: Any = Selection
    policy: Any = SkipPolicy
    monitoring: Any = Monitoring(app)
    ems: Any = app
    admin.create_group("t", "g")
    wrong: list[Any] = [
        lambda: admin.create_topic("x", kind="x"), lambda: admin.create_topic("x", rule="x"),
        lambda: admin.create_topic("x", partitions="3"), lambda: admin.create_topic("x", partitions=1.5),
        lambda: admin.create_topic("x", retention_s="7d"), lambda: admin.create_topic("x", retention_s=math.nan),
        lambda: admin.create_topic("x", retention_s=math.inf), lambda: admin.create_topic("x", retention_s=1e30),
        lambda: admin.create_topic("x", priorities="x"), lambda: admin.create_topic("x", max_message_bytes=None),
        lambda: admin.create_topic("x", age_wins="no"), lambda: admin.create_topic(5),
        lambda: admin.change_topic("t", retention=5), lambda: admin.change_topic("t", id=5),
        lambda: admin.change_topic("t", rule="q"),
        lambda: admin.change_topic("t", partitions=None), lambda: admin.create_group("t", "x", timeout_s="x"),
        lambda: admin.create_group("t", "x", timeout_s=math.nan), lambda: admin.create_group("t", "x", timeout_s=1e30),
        lambda: admin.create_group("t", "x", ladder=5), lambda: admin.create_group("t", "x", max_attempts="x"),
        lambda: admin.create_group("t", "x", filter=["a"]), lambda: admin.create_group("t", "x", order="kex"),
        lambda: admin.change_group("t", "g", timout_s=5), lambda: admin.change_group("t", "g", order="key"),
        lambda: admin.change_group("t", "g", paused="maybe"), lambda: admin.change_group("t", "g", filter=["a"]),
        lambda: admin.reset_group("t", "g", 5), lambda: admin.reset_group("t", "g", "latest", partition="x"),
        lambda: admin.limits.set("t", "g", rate=5), lambda: admin.limits.set("t", "g", max_running="5"),
        lambda: admin.alarms.create("a", on="lag", abov=5), lambda: admin.alarms.create("a", on="lag", above="x"),
        lambda: admin.alarms.create("a", on="lag", above=math.nan), lambda: admin.alarms.create("a", on="lag", for_s="5m"),
        lambda: admin.alarms.create("a", on="lag", webhook=5),
        lambda: admin.alarms.create("a", on="lag", webhook="ftp://x"),
        lambda: admin.alarms.create("a", on="lag", command=5), lambda: admin.alarms.create("a", on="lag", topic=5),
        lambda: admin.messages.list("t", limit="x"), lambda: admin.messages.list("t", limit=0),
        lambda: admin.messages.list("t", limit=10**30), lambda: admin.messages.list("t", select(start=5)),
        lambda: admin.messages.list("t", select(keys="abc")), lambda: admin.messages.list("t", select(where=5)),
        lambda: admin.messages.peek("t", "g", limit="x"), lambda: admin.messages.get(5), lambda: admin.dead.find(5),
        lambda: admin.backlogs.skip("t", "g", policy("x")), lambda: monitoring.trace(5), lambda: ems.cancel(5),
        lambda: admin.backlogs.skip("t", "g", policy(older_s="5m")), lambda: ems.result(5), lambda: ems.send(None, 1),
        lambda: ems.result("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70").get(timeout="x"), lambda: ems.send(["t"], 1),
        lambda: ems.send("t", 1, transaction="x"), lambda: ems.task("name"), lambda: ems.subscribe("t", "x")(5),
        lambda: ems.task(ems.task(name="q")(print)), lambda: Ems("x", middleware=[5]),  # type: ignore[list-item]
    ]  # fmt: skip
    for number, one in enumerate(wrong):
        try:
            with pytest.raises(EmsError):
                one()
        except BaseException as error:
            raise AssertionError(f"number {number} was not refused as it should: {error!r}") from error
    assert [topic.name for topic in admin.topics()] == ["t"] and [one.name for _, one in admin.groups()] == ["g"]
    assert admin.alarms.list() == []
