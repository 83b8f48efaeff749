"""Permits and slots, as many clients ask for them at once."""

import time

import pytest

from emsworker.core.errors import ConfigError
from emsworker.core.limits import Limit, parse_rate
from emsworker.store.cluster import clients
from emsworker.store.groups import limits
from emsworker.store.groups.claims import find_work
from emsworker.tasks.limits import declare_limit, limit_of
from tests.support.streams import Stream, in_threads


def test_many_clients_never_get_more_permits_than_the_rate(stream: Stream) -> None:
    group = stream.group(stream.topic("t"))
    limits.set_limit(stream.session, group.id, Limit(rate="400/s"))
    ids = [stream.client() for _ in range(6)]
    sessions = [stream.new_session() for _ in ids]
    for session, client_id in zip(
        sessions, ids, strict=True
    ):  # to connect takes long, and what is not asked for is lost
        limits.acquire(session, group.id, client_id, 1)
    began = time.monotonic()
    stream.rows("UPDATE ems_limit SET tokens = 0, filled_at = UTC_TIMESTAMP(6)")

    def ask(number: int) -> int:
        permit = limits.acquire(sessions[number], group.id, ids[number], 50)
        assert permit.granted <= 50 and permit.rated
        assert permit.granted or 0 < permit.wait_s <= 1
        return permit.granted

    got = 0
    for _ in range(30):  # all at once, every 50 ms and what the machine takes for it
        stream.rows("UPDATE ems_limit SET filled_at = filled_at - INTERVAL 50000 MICROSECOND")
        got += sum(in_threads(6, ask))
    took_s = 30 * 0.05 + time.monotonic() - began
    left = stream.rows("SELECT tokens FROM ems_limit")[0][0]
    for session in sessions:
        session.close()
    assert 400 * 30 * 0.05 - 1 <= got + left <= 400 * took_s + 1


def test_permits_are_saved_up_for_a_moment_only_and_given_back(stream: Stream) -> None:
    group, client_id = stream.group(stream.topic("t")), stream.client()
    limits.set_limit(stream.session, group.id, Limit(rate="40/h"))
    ask = limits.acquire
    assert ask(stream.session, group.id, client_id, 5) == limits.Permit(0, True, 1.0), "it begins with nothing"
    stream.rows("UPDATE ems_limit SET filled_at = filled_at - INTERVAL 1 DAY")
    assert ask(stream.session, group.id, client_id, 5).granted == 1, "not 960"
    assert ask(stream.session, group.id, client_id, 5).granted == 0
    assert ask(stream.session, group.id, client_id, 5, refund=1).granted == 1
    stream.rows("UPDATE ems_limit SET filled_at = filled_at + INTERVAL 1 DAY")  # another server has taken over
    assert ask(stream.session, group.id, client_id, 5, refund=-1).granted == 0
    stream.rows("UPDATE ems_limit SET filled_at = filled_at - INTERVAL 1 DAY")
    assert ask(stream.session, group.id, client_id, 5).granted == 1, "it fills again from now on, not in a day"
    limits.set_limit(stream.session, group.id, Limit())
    assert ask(stream.session, group.id, client_id, 500).granted == 500, "no limit any more"


def test_slots_are_counted_over_clients_and_freed_with_their_leases(stream: Stream) -> None:
    group = stream.group(stream.topic("t"))
    limits.set_limit(stream.session, group.id, Limit(max_running=3))
    ids = [stream.client() for _ in range(8)]

    def ask(number: int) -> int:
        with stream.new_session() as session:
            return limits.acquire(session, group.id, ids[number], 100).granted

    granted = in_threads(8, ask)
    assert sorted(granted) == [0, 0, 0, 0, 0, 100, 100, 100], "one after another: a slot each, whatever is claimed"
    holders = [client_id for client_id, count in zip(ids, granted, strict=True) if count]
    others = [client_id for client_id, count in zip(ids, granted, strict=True) if not count]
    assert limits.count_running(stream.session, group.id) == 3
    assert limits.acquire(stream.session, group.id, holders[0], 100).granted == 100, "it keeps its own"
    stream.rows(f"UPDATE ems_client SET expires_at = expires_at - INTERVAL 1 DAY WHERE client_id = '{holders[0]}'")
    assert limits.acquire(stream.session, group.id, others[0], 100).granted == 100, "its lease has run out"
    assert limits.acquire(stream.session, group.id, others[1], 100).granted == 0
    clients.deregister(stream.session, [holders[1]])
    limits.release(stream.session, group.id, holders[2])
    assert limits.acquire(stream.session, group.id, others[1], 100, at_once=True).granted == 2, "one for each message"
    assert limits.acquire(stream.session, group.id, others[2], 100).granted == 0
    assert limits.sweep(stream.session, 100) == 1, "that of the client that deregistered"
    assert limits.count_running(stream.session, group.id) == 3


def test_the_poller_hears_of_limits(stream: Stream) -> None:
    group = stream.group(stream.topic("t"))
    assert find_work(stream.session, [group.id]).work == {}
    limits.declare(stream.session, group.id, Limit(rate="5/m"))
    assert find_work(stream.session, [group.id]).work[group.id].limited
    assert limits.declare(stream.session, group.id, Limit(rate="6/m")) == Limit(rate="5/m"), "the first one holds"
    limits.set_limit(stream.session, group.id, Limit())
    assert find_work(stream.session, [group.id]).work == {}
    assert limits.declare(stream.session, group.id, Limit(rate="6/m")) == Limit(), "taken off for good"


def test_what_an_app_declares_holds_only_if_nothing_else_was_set(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    app = stream.app()
    app.task(name="limited", topic="t", group="g", max_running=3)(lambda: None)
    (route,) = app.registry.routes.values()
    group = stream.group(stream.topic("t"))
    declare_limit(app.stream, group, route)
    assert limits.get_limit(stream.session, group.id) == Limit(max_running=3) and not caplog.messages
    limits.set_limit(stream.session, group.id, Limit())
    declare_limit(app.stream, group, route)
    assert caplog.messages == [
        "t/g declares max-running 3, but no limit was set before and holds; `ems groups limit t g` changes it"
    ]


def test_what_is_no_limit_is_said() -> None:
    assert [parse_rate(text) for text in ("100/s", "30/m", "1.5/s", "5/h")] == [100, 0.5, 1.5, 5 / 3600]
    for text in ("100", "0/s", "-1/s", "5/d", "x/s", "1/ s"):
        with pytest.raises(ConfigError, match="write it like 100/s"):
            Limit(rate=text)
    for most in (0, -1, 65536, True):
        with pytest.raises(ConfigError, match="whole number"):
            Limit(max_running=most)


def test_tasks_that_share_a_group_have_one_limit(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(ConfigError, match="rate_limit"):
        app.task(name="x", rate_limit="5")(lambda: None)
    app.task(name="limited", rate_limit="5/s")(lambda: None)
    (route,) = app.registry.routes.values()
    assert limit_of(route) == Limit(rate="5/s")
    app.task(name="other")(lambda: None)
    with pytest.raises(ConfigError, match="topic of its own"):
        limit_of(route)
