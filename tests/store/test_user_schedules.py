"""Schedules of users: in a transaction of the user's, next to a beat, beside those of the code, and very many."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.beat.schedules import fire_schedules
from emsworker.core.codec import decode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, UnknownSchedule, WrongArguments
from emsworker.store.cluster import schedules
from emsworker.store.engine.session import Session
from emsworker.tasks.periodic import declare_schedules
from emsworker.tasks.schedules import AppSchedules
from tests.store.test_flat_cost import SEQUENCE
from tests.support.streams import Stream, in_threads, wait_until

_LATE = "UPDATE ems_schedule SET next_at = '2020-01-01'"  # of the missed slots, the last is fired


@pytest.fixture
def shop(stream: Stream) -> Ems:
    app = stream.app()

    @app.task(name="report")
    def report(customer: int, kind: str = "sales") -> None: ...

    return app


def _fire(stream: Stream) -> list[tuple[Any, ...]]:
    """Run a beat once, and return the messages that have become due, as text, the first first."""
    fire_schedules(stream.session, Settings())
    return stream.rows("SELECT body, `key`, tag, headers, due_at FROM ems_outbox ORDER BY due_at, body")


def _bodies(stream: Stream) -> list[bytes]:
    return [bytes(row[0]) for row in _fire(stream)]


def test_a_customer_and_its_schedule_are_created_in_one_commit(stream: Stream, shop: Ems) -> None:
    stream.rows("CREATE TABLE customer (id INT PRIMARY KEY)")
    times: dict[str, Any] = {"every": 3600.0, "args": [7], "kwargs": {"kind": "week"}, "key": "c7", "tag": "vip"}
    with pytest.raises(KeyError), shop.transaction() as tx:
        tx.execute("INSERT INTO customer VALUES (7)")
        shop.schedules.add("customer-7", "report", transaction=tx, **times)
        raise KeyError
    assert shop.schedules.list() == [] and stream.rows("SELECT * FROM customer") == []
    with shop.transaction() as tx:
        tx.execute("INSERT INTO customer VALUES (7)")
        row = shop.schedules.add("customer-7", "report", transaction=tx, expires=60, headers={"by": "ann"}, **times)
        assert Admin(stream.app()).schedules.list() == [], "nothing before the commit"
    assert shop.schedules.list() == [row] and (row.origin, row.task, row.tag) == ("user", "report", "vip")
    assert timedelta(0) < row.next_at - datetime.now(UTC) < timedelta(hours=1, minutes=1)
    stream.rows(_LATE)
    ((body, key, tag, headers, due_at),) = _fire(stream)
    found = decode_headers(bytes(headers))
    assert (bytes(body), bytes(key), bytes(tag)) == (b'[[7],{"kind":"week"}]', b"c7", b"vip")
    assert (found["by"], found["ems-task"], found["ems-slot"]) == ("ann", "report", f"{due_at.isoformat()}+00:00")
    assert datetime.fromisoformat(found["ems-expires"]) - datetime.fromisoformat(found["ems-slot"]) == timedelta(
        seconds=60
    )
    assert len(_fire(stream)) == 1, "each slot once"


def test_it_takes_any_connection_and_two_may_add_neighbours(stream: Stream, shop: Ems) -> None:
    """At the server's own isolation level and in another time zone; no lock on a gap, over which both would fail."""
    one, two = stream.other(), stream.other()
    for number, connection in enumerate((one, two)):
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = '+09:00'")
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT COUNT(*) FROM ems_schedule")
        shop.schedules.add(f"n-{number}", "report", "0 0 * * *", args=[number], transaction=connection)
    for number, connection in enumerate((one, two)):
        shop.schedules.add(f"n-{number}5", "report", every=60, args=[number], transaction=connection)
        shop.schedules.pause(f"n-{number}", transaction=connection)
    one.commit()
    two.rollback()
    found = shop.schedules.list()
    assert [(row.name, row.paused) for row in found] == [("n-0", True), ("n-05", False)]
    midnight = found[0].next_at
    assert (midnight.hour, midnight.minute) == (0, 0) and midnight - datetime.now(UTC) < timedelta(days=1)
    assert abs(found[0].declared_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_change_holds_from_the_next_slot_on(stream: Stream, shop: Ems) -> None:
    kept = shop.schedules
    first = kept.add("s", "report", "0 9 * * *", timezone="Europe/Berlin", args=[1])
    assert kept.add("s", "report", "0 9 * * *", timezone="Europe/Berlin", args=[2]).next_at == first.next_at
    changed = kept.change("s", timezone="Asia/Tokyo", kwargs={"customer": 3})
    assert (changed.spec, changed.timezone) == ("0 9 * * *", "Asia/Tokyo") and changed.next_at.hour == 0
    stream.rows(_LATE)
    assert _bodies(stream) == [b'[[],{"customer":3}]']
    stream.rows("DELETE FROM ems_outbox")
    kept.change("s", every=3600.0, args=[4])
    kept.pause("s")
    stream.rows(_LATE)
    assert _fire(stream) == [], "it is paused"
    assert kept.resume("s").next_at > datetime.now(UTC) and _fire(stream) == [], "what passed meanwhile is left out"
    stream.rows(_LATE)
    assert _bodies(stream) == [b"[[4],{}]"]
    kept.change("s", catch_up="none")
    stream.rows("DELETE FROM ems_outbox")
    stream.rows(_LATE)
    assert _fire(stream) == [], "all of them are too late"
    stream.rows(_LATE)
    kept.delete("s")
    assert _fire(stream) == [] and kept.list() == []
    for use in (kept.pause, kept.resume, kept.delete, kept.change):
        with pytest.raises(UnknownSchedule, match="'s'"):
            use("s", **({"every": 1.0} if use == kept.change else {}))  # type: ignore[operator]


def test_a_beat_waits_for_no_user_and_fires_nothing_that_is_deleted(stream: Stream, shop: Ems) -> None:
    """A user's open transaction holds up its own schedule only; its end decides about the slot."""
    for name in ("gone", "kept", "other"):
        shop.schedules.add(name, "report", every=3600.0, args=[name])
    stream.rows(_LATE)
    user = stream.other()
    shop.schedules.delete("gone", transaction=user)
    shop.schedules.change("kept", args=["new"], transaction=user)
    assert _bodies(stream) == [b'[["other"],{}]']
    user.commit()
    assert sorted(_bodies(stream)) == [b'[["new"],{}]', b'[["other"],{}]']


def test_a_deletion_waits_for_a_beat_that_fires(stream: Stream, shop: Ems) -> None:
    """What the beat fires is committed when the deletion returns; after that there is nothing any more."""
    shop.schedules.add("s", "report", every=3600.0, args=[1])
    stream.rows(_LATE)

    def delete() -> int:
        shop.schedules.delete("s")
        return int(stream.rows("SELECT COUNT(*) FROM ems_outbox")[0][0])

    blocker = stream.other()
    blocker.cursor().execute("SELECT 1 FROM ems_topic_guard FOR UPDATE")  # the beat waits for it, with the row locked
    with ThreadPoolExecutor(2) as pool:
        fired = pool.submit(lambda: schedules.fire(stream.new_session(), ["s"], 1.0))
        wait_until(lambda: _runs(stream, "ems_topic_guard"), what="the beat has the row")
        deleted = pool.submit(delete)
        wait_until(lambda: _runs(stream, "ems_schedule"), what="the deletion waits")
        assert not fired.done() and not deleted.done()
        blocker.rollback()
        assert (fired.result(20).slots, deleted.result(20)) == (1, 1)
    assert schedules.fire(stream.session, ["s"], 1.0).moved == 0


def _runs(stream: Stream, text: str) -> bool:
    """Whether a statement about a table is under way in another connection."""
    return any(text in str(row[7]) for row in stream.rows("SHOW FULL PROCESSLIST") if row[3] == _name(stream))


def _name(stream: Stream) -> str:
    return stream.url.rsplit("/", 1)[1]


def test_those_of_the_code_are_only_paused(stream: Stream, shop: Ems) -> None:
    task = shop.task(name="clean")(lambda: None)
    shop.periodic("0 3 * * *", name="nightly")(task)

    def declare() -> None:
        declare_schedules(shop.stream, shop.settings, shop.registry.schedules.values())

    declare()
    before = shop.schedules.list()
    kept = shop.schedules
    refused: list[Callable[[], object]] = [
        lambda: kept.add("nightly", "report", every=1.0, args=[1]),
        lambda: kept.change("nightly", every=1.0),
        lambda: kept.delete("nightly"),
    ]
    for use in refused:
        with pytest.raises(ConfigError, match=r"nightly.*declares it in its code"):
            use()
    assert kept.list() == before and before[0].origin == "code"
    kept.pause("nightly")
    declare()  # the next deployment
    stream.rows(_LATE)
    assert kept.list()[0].paused and _fire(stream) == []
    kept.resume("nightly")

    Admin(shop).schedules.delete("nightly")
    kept.add("nightly", "report", every=60.0, args=[1])
    shop.periodic("0 4 * * *", name="other")(task)
    with pytest.raises(ConfigError, match=r"'nightly'.*created at run time"):
        declare()
    assert [(row.name, row.task) for row in kept.list()] == [("nightly", "report")], "all or nothing"


def test_what_is_wrong_is_refused_before_anything_is_written(stream: Stream, shop: Ems) -> None:
    add: Callable[..., object] = shop.schedules.add
    for wrong, match in (
        ({"cron": "61 * * * *"}, "not a cron expression"), ({"cron": "* * * * *", "timezone": "Mars/Base"}, "Mars/Base"),
        ({"every": 60, "timezone": "Mars/Base"}, "Mars/Base"), ({}, "give either"), ({"cron": "* * * * *", "every": 1}, "give either"),
        ({"every": 0.1}, "second and a year"), ({"every": 60, "catch_up": "some"}, "catch_up"),
        ({"every": 60, "expires": 0}, "expires"), ({"every": 60, "countdown": 1}, "countdown"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            add("s", "report", **{"args": [1], **wrong})
    with pytest.raises(ConfigError, match="no task of that name"):
        add("s", "reprot", every=60)
    with pytest.raises(WrongArguments, match="customer"):
        add("s", "report", every=60)
    admin = Admin(shop).schedules
    with pytest.raises(ConfigError, match="no worker has started with a task"):
        admin.add("s", "report", every=60)
    assert shop.schedules.list() == [] and admin.list() == []
    add("s", "report", every=60, args=[1])
    with pytest.raises(WrongArguments, match="customer"):
        shop.schedules.change("s", args=[])
    with pytest.raises(ConfigError, match="give either"):
        shop.schedules.change("s", "* * * * *", every=1.0)


def test_ten_thousand_are_flat(stream: Stream, shop: Ems) -> None:
    """Neither a beat's turn nor a page reads more rows because there are more schedules."""
    shop.schedules.add("model", "report", every=3600.0, args=[1], tag="vip")
    stream.rows(
        "INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, headers, body, next_at, declared_at, origin, task, tag) "
        "SELECT CONCAT('c-', LPAD(n, 5, '0')), spec, timezone, catch_up, topic, headers, body, next_at, declared_at, origin, task, "
        f"IF(MOD(n, 1000) = 0, 'rare', 'usual') FROM ems_schedule, {SEQUENCE} WHERE n <= 10000"
    )
    stream.rows("ANALYZE TABLE ems_schedule")
    stream.rows(_LATE + " WHERE name IN ('c-00003', 'c-05000', 'c-10000')")

    def read(work: Callable[[], object]) -> int:
        before = _rows_read(stream.session)
        work()
        return _rows_read(stream.session) - before

    assert read(lambda: fire_schedules(stream.session, Settings())) < 100
    assert stream.rows("SELECT COUNT(*) FROM ems_outbox")[0][0] == 3
    assert read(lambda: schedules.move_back(stream.session)) < 11_000  # a scan once a minute, and nothing is computed
    for given, count in (({"prefix": "c-0999"}, 10), ({"tag": b"rare"}, 10), ({"after": "c-09990", "limit": 5}, 5)):
        found: list[Any] = []
        rows = read(lambda given=given, found=found: found.extend(schedules.list_schedules(stream.session, **given)))  # type: ignore[misc]
        assert (len(found), rows < 100) == (count, True), (given, rows)
    names: list[str] = []
    while page := AppSchedules(shop).list(prefix="c-", after=names[-1] if names else "", limit=4000):
        names += [row.name for row in page]
    assert len(names) == 10_000 and names == sorted(names)
    stream.rows(_LATE + " WHERE name < 'c-01500'")
    while fire_schedules(stream.session, Settings()) == 0.0:
        pass
    assert stream.rows("SELECT COUNT(*) FROM ems_outbox")[0][0] == 1499 + 2, "no end to a round before all are fired"


def _rows_read(session: Session) -> int:
    """Rows that the session has read by now."""
    return sum(int(value) for _, value in session.rows("SHOW SESSION STATUS LIKE 'Handler_read%'"))


def test_many_add_and_change_at_once(stream: Stream, shop: Ems) -> None:
    """The same names from several threads: an idempotent upsert, with no conflict that reaches the caller."""
    shop.schedules.list()

    def work(number: int) -> None:
        for n in range(10):
            shop.schedules.add(f"s-{n}", "report", every=60.0 + n, args=[number])
            if number == 0:
                shop.schedules.change(f"s-{n}", kwargs={"customer": n})

    in_threads(4, work)
    assert [row.name for row in shop.schedules.list()] == [f"s-{n}" for n in range(10)]
