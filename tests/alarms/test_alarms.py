"""Alarms fire once and are resolved once, and receivers are told at least once."""

import hashlib
import hmac
import json
import stat
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.alarms import deliveries, measurements, send_test
from emsworker.alarms import receivers as delivery
from emsworker.alarms.dead_man import PingDeadMan
from emsworker.alarms.machine import Attempts, Step
from emsworker.alarms.measurements import measure
from emsworker.alarms.watch import WatchAlarms
from emsworker.beat.server import WatchLocks
from emsworker.core.alarms import Alarm, Metric, Rule
from emsworker.core.config import Settings
from emsworker.core.errors import AlreadyExists, ConfigError, DiskFull, UnknownAlarm
from emsworker.core.model import Group, Topic
from emsworker.local import LocalDatabase
from emsworker.publish.intake import ingest
from emsworker.store.engine.probe import check_room
from emsworker.store.engine.schema import server_now
from emsworker.store.groups import progress
from tests.support import rows
from tests.support.full_disk import full_disk
from tests.support.streams import Stream, failed, flush_of, in_threads, wait_until
from tests.support.webhooks import receiver

SETTINGS = Settings(url="mysql://x@y/z", beat_s=0.05)


def _duty(stream: Stream, settings: Settings = SETTINGS) -> Callable[[], float]:
    """Turns of one beat's alarms; each measures."""
    alarms = WatchAlarms()

    def turn() -> float:
        alarms._next_watch = 0.0
        return alarms(stream.session, settings)

    return turn


def _backlog(stream: Stream, count: int = 20) -> tuple[Topic, Group]:
    topic = stream.topic("orders")
    group = stream.group(topic, "billing")
    stream.app().send_many("orders", range(count))
    return topic, group


def _drain(stream: Stream, topic: Topic, group: Group) -> None:
    claim = stream.take(topic, group, stream.client())
    progress.flush(stream.session, flush_of(claim, topic, claim.hi))


def _value(stream: Stream, metric: str, **settings: Any) -> float:
    rule = Rule("r", Metric(metric), **settings)
    value = measure(stream.session, [rule], server_now(stream.session))["r"]["orders", "billing"]
    assert isinstance(value, float | int)
    return value


def test_what_is_measured_equals_what_was_done(stream: Stream) -> None:
    topic, group = _backlog(stream)
    stream.group(topic, "other")
    assert _value(stream, "lag") == _value(stream, "no_consumer") == 20
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL `offset` * 100 SECOND")
    assert 100 <= _value(stream, "oldest") < 110
    claim = stream.take(topic, group, stream.client(), 10)
    failures = [failed(1, retry_in_s=900.0), failed(2, retry_in_s=900.0), failed(3, dead="no")]
    progress.flush(stream.session, flush_of(claim, topic, 6, failures=failures))
    assert _value(stream, "lag") == 14
    assert _value(stream, "no_consumer") == 0, "somebody works"
    assert (_value(stream, "retries", above=9), _value(stream, "retries", above=0)) == (2, 1), "no further than needed"
    assert _value(stream, "dead", above=9) == 1
    stream.rows("UPDATE ems_dead SET dead_at = NOW(6) - INTERVAL 1 HOUR")
    assert _value(stream, "dead", above=9) == 0 and _value(stream, "dead", above=9, within_s=7200) == 1
    assert 100 <= _value(stream, "oldest") < 110, "what waits for a retry is not finished"
    assert _value(stream, "stuck") < 5
    stream.rows("UPDATE ems_claim SET progress_at = NOW(6) - INTERVAL 90 SECOND")
    assert 90 <= _value(stream, "stuck") < 100
    stream.rows("UPDATE ems_claim SET state = 'waiting'")
    assert _value(stream, "stuck") == 0 and _value(stream, "no_consumer") == 14
    rows.hold_back(stream.rows, 60)
    assert _value(stream, "no_consumer") == 0, "what is held back is meant to wait"
    rows.hold_back(stream.rows, None)
    stream.rows("UPDATE ems_group SET paused = 1")
    assert _value(stream, "no_consumer") == 0, "a paused group is meant to rest"
    rules = [Rule("a", Metric.LAG, group="other"), Rule("b", Metric.LAG, topic="nothing")]
    assert measure(stream.session, rules, server_now(stream.session)) == {
        "a": {("orders", "other"): 20.0},
        "b": {},
    }


def test_attempts_are_counted_by_group_and_time(stream: Stream) -> None:
    topic = stream.topic("t")
    stream.app().send_many("t", list(range(6)))
    client = stream.client()
    for name, failures in (("g", [failed(1), failed(2)]), ("other", [failed(3, attempt=2)]), ("idle", [])):
        group = stream.group(topic, name)
        if failures:
            claim = stream.take(topic, group, client)
            progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
    stream.rows("UPDATE ems_attempt SET ended_at = NOW(6) - INTERVAL 10 SECOND")
    now = server_now(stream.session)

    def counts(since_s: int) -> dict[str, Any]:
        rule = Rule("r", Metric.ERROR_RATE)
        values = measure(stream.session, [rule], now, now - timedelta(seconds=since_s))["r"]
        return {group: value[1:] for (_, group), value in values.items() if isinstance(value, Attempts)}

    assert counts(60) == {"g": (7, 2, 0), "other": (7, 1, 1), "idle": (1, 0, 0)}
    assert counts(5) == {"g": (7, 0, 0), "other": (7, 0, 0), "idle": (1, 0, 0)}


def test_counting_reads_a_part_of_an_index(stream: Stream) -> None:
    numbers = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 900) SELECT"
    stream.rows(
        "INSERT INTO ems_attempt (group_id, `partition`, `offset`, ended_at, attempt, outcome) "
        f"{numbers} n MOD 3, 0, n, NOW(6) - INTERVAL n SECOND, 1, 'failed' FROM n"
    )
    stream.rows("ANALYZE TABLE ems_attempt")
    now = server_now(stream.session).replace(tzinfo=None)
    args = {"group_id": 1, "since": now - timedelta(seconds=20), "until": now}
    (row,) = stream.explain(measurements._SQL.count_attempts, args)
    assert (row["key"], row["type"]) == ("recent", "range")


def test_an_error_rate_is_of_what_ended_meanwhile(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = _backlog(stream)
    Admin(stream.app()).alarms.create("failing", on="error_rate", above=0.25, least=4)
    turn = _duty(stream)
    turn()
    claim = stream.take(topic, group, stream.client(), 10)
    progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=[failed(1), failed(2), failed(3)]))
    wait_until(lambda: (turn(), "alarm failing firing" in caplog.text)[1])
    assert "error_rate of orders/billing is 30.0% (alarm above 25.0%)" in caplog.text
    assert _duty(stream)() >= 0 and caplog.text.count("alarm failing") == 1, "another leader does not know yet"
    _drain(stream, topic, group)
    turn()
    assert "alarm failing resolved: error_rate of orders/billing is 15.0%" in caplog.text


def test_it_fires_once_and_is_resolved_once_whoever_leads(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = _backlog(stream)
    with receiver() as web:
        Admin(stream.app()).alarms.create("late", on="lag", above=10, topic="orders", webhook=web.url)

        def beat(number: int) -> None:
            alarms = WatchAlarms()
            with stream.new_session() as session:
                for _ in range(10):
                    alarms._next_watch = 0.0
                    alarms(session, SETTINGS)
                wait_until(lambda: (alarms(session, SETTINGS), not alarms._flying)[1])

        in_threads(4, beat)
        turn = _duty(stream)
        wait_until(lambda: (turn(), len(web.got) >= 1)[1])
        _drain(stream, topic, group)
        in_threads(4, beat)
        wait_until(lambda: (turn(), len(web.got) >= 2)[1])
        wait_until(lambda: turn() >= 0 and not stream.rows("SELECT * FROM ems_alarm_event WHERE due_at <= NOW(6)"))
    assert web.events == [("late", "firing"), ("late", "resolved")]
    firing, resolved = web.got
    assert firing["id"] == resolved["id"] and (firing["value"], firing["above"]) == (20, 10)
    assert (firing["topic"], firing["group"], firing["metric"]) == ("orders", "billing", "lag")
    assert firing["text"] == "late firing: lag of orders/billing is 20 (alarm above 10)"
    assert caplog.text.count("alarm late firing") == caplog.text.count("alarm late resolved") == 1
    assert stream.rows("SELECT * FROM ems_alarm") == []


def test_a_breach_must_last_and_the_next_leader_goes_on_counting(stream: Stream) -> None:
    topic, group = _backlog(stream)
    admin = Admin(stream.app())
    admin.alarms.create("late", on="lag", above=10, for_s=60)
    _duty(stream)()
    ((alarm,),) = [watched.alarms for watched in admin.alarms.list()]
    assert not alarm.firing
    stream.rows("UPDATE ems_alarm SET since = NOW(6) - INTERVAL 61 SECOND")
    _duty(stream)()
    ((fired,),) = [watched.firing for watched in admin.alarms.list()]
    assert fired.alarm_id == alarm.alarm_id and fired.value == 20
    _drain(stream, topic, group)
    _duty(stream)()
    assert admin.alarms.list()[0].alarms == ()
    stream.app().send_many("orders", range(11))
    _duty(stream)()
    _drain(stream, topic, group)
    _duty(stream)()
    assert admin.alarms.list()[0].alarms == (), "a short breach is forgotten"
    assert stream.rows("SELECT * FROM ems_alarm_event") == [], "it has neither a webhook nor a command"


def test_refused_rows_are_an_alarm_and_a_metric_of_the_whole_stream(stream: Stream) -> None:
    admin, turn = Admin(stream.app()), _duty(stream)
    with receiver() as web:
        admin.alarms.create("not-sent", on="refused", alertmanager=web.url)
        admin.alarms.create("many", on="refused", above=2)
        turn()
        assert not any(watched.alarms for watched in admin.alarms.list())
        stream.rows("INSERT INTO ems_publish (topic, body) VALUES ('ordres', '1'), ('', '1'), ('ordres', '{')")
        ingest(stream.session, SETTINGS, 10)
        stream.rows("INSERT INTO ems_publish (topic, body) VALUES ('other', '1')")  # not looked at yet
        assert Monitoring(stream.app()).refused() == 3 and Monitoring(stream.app()).refused(2) == 2
        turn()
        firing = {watched.rule.name: [one.where for one in watched.firing] for watched in admin.alarms.list()}
        assert firing == {"not-sent": ["the stream"], "many": ["the stream"]}
        wait_until(lambda: turn() and web.got)
        (alert,) = cast(Any, web.got[0])
        assert alert["labels"] == {"alertname": "not-sent", "metric": "refused"}
        assert (
            alert["annotations"]["summary"] == "not-sent firing: refused of the stream is more than 0 (alarm above 0)"
        )
    stream.rows("DELETE FROM ems_publish")
    turn()
    assert not any(watched.alarms for watched in admin.alarms.list()) and Monitoring(stream.app()).refused() == 0
    with pytest.raises(
        ConfigError, match="topic = 'orders': must be left out: refused is measured for the whole stream"
    ):
        admin.alarms.create("wrong", on="refused", topic="orders")


def test_a_full_disk_is_an_alarm_that_needs_no_room(stream: Stream, server: LocalDatabase) -> None:
    admin, turn = Admin(stream.app()), _duty(stream)
    _backlog(stream)
    check_room(stream.session)
    with receiver() as web:
        admin.alarms.create("no-room", on="disk_full", webhook=web.url)
        admin.alarms.create("behind", on="lag", webhook=web.url)
        admin.alarms.create("patient", on="disk_full", for_s=3600, webhook=web.url)
        with full_disk(server, stream.url, "ems_message", "ems_alarm", "ems_alarm_event"):
            with pytest.raises(DiskFull):
                check_room(stream.session)
            wait_until(lambda: turn() and len(web.got) >= 2)
            turn()
            assert sorted((one["rule"], one["event"]) for one in web.got) == [
                ("behind", "firing"),
                ("no-room", "firing"),
            ]
            assert stream.rows("SELECT * FROM ems_alarm") == []
        check_room(stream.session)
        wait_until(lambda: turn() and len(web.got) >= 4)
        told = sorted((one["rule"], one["event"]) for one in web.got[2:])
        assert told == [("behind", "firing"), ("no-room", "resolved")], "the other one fires again, and is written"
        assert stream.rows("SELECT rule FROM ems_alarm") == [("behind",)]


def test_whoever_measured_too_long_ago_changes_nothing(stream: Stream) -> None:
    _backlog(stream)
    admin = Admin(stream.app())
    rule = admin.alarms.create("late", on="lag")
    _duty(stream)()
    ((alarm,),) = [watched.firing for watched in admin.alarms.list()]
    stream.rows("SET timestamp = UNIX_TIMESTAMP() - 10")
    old = stream.value("SELECT NOW(6)").replace(tzinfo=alarm.since.tzinfo)
    stream.rows("SET timestamp = DEFAULT")
    assert deliveries.change(stream.session, rule, Step.RESOLVE, alarm, old) is None
    assert admin.alarms.list()[0].firing == (alarm,)
    other = Alarm(**vars(alarm) | {"alarm_id": b"x" * 16})
    assert deliveries.change(stream.session, rule, Step.RESOLVE, other, server_now(stream.session)) is None
    assert deliveries.change(stream.session, rule, Step.RESOLVE, alarm, server_now(stream.session)) is not None


def test_a_webhook_that_hangs_holds_nobody_up(stream: Stream) -> None:
    _backlog(stream)
    admin = Admin(stream.app())
    with receiver(hangs=True) as hung, receiver() as web:
        admin.alarms.create("a-hung", on="lag", webhook=hung.url)
        admin.alarms.create("late", on="lag", webhook=web.url)
        turn = _duty(stream)
        longest = 0.0

        def both() -> bool:
            nonlocal longest
            began = time.monotonic()
            turn()
            longest = max(longest, time.monotonic() - began)
            return hung.hanging.is_set() and web.events == [("late", "firing")]

        wait_until(both)
        assert longest < delivery._WEBHOOK_S, "whoever waits for the one that hangs waits for so long"
        assert stream.rows("SELECT rule, tries, due_at > NOW(6) FROM ems_alarm_event WHERE rule = 'a-hung'") == [
            ("a-hung", 1, 1)
        ]
        assert len(hung.got) == 1, "while it hangs nobody tries again"


def test_what_fails_is_tried_again_in_order_and_a_dead_beats_delivery_too(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    topic, group = _backlog(stream)
    with receiver() as web:
        Admin(stream.app()).alarms.create("late", on="lag", webhook=web.url)
        web.answers = [500, 302, 404]
        turn = _duty(stream)
        wait_until(lambda: (turn(), "tried again in" in caplog.text)[1])
        assert "the webhook answered 404" in caplog.text and web.url not in caplog.text
        _drain(stream, topic, group)
        turn()
        assert web.events == [("late", "firing")] * 3, "what comes later waits for what comes first"
        stream.rows("UPDATE ems_alarm_event SET due_at = NOW(6)")
        (taken,) = deliveries.take_deliveries(stream.session, 9, 60.0)
        assert deliveries.take_deliveries(stream.session, 9, 60.0) == []
        assert json.loads(taken.body)["event"] == "firing"  # and here its process dies
        stream.rows("UPDATE ems_alarm_event SET due_at = NOW(6)")
        turn = _duty(stream)
        wait_until(lambda: (turn(), len(web.got) == 5)[1])
        assert web.events[3:] == [("late", "firing"), ("late", "resolved")]
        wait_until(lambda: turn() >= 0 and not stream.rows("SELECT * FROM ems_alarm_event"))
        assert len({body["id"] for body in web.got}) == 1


def test_a_command_gets_the_alarm_if_its_program_is_allowed(
    stream: Stream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _backlog(stream)
    program, out = tmp_path / "page", tmp_path / "out"
    program.write_text(f"#!{sys.executable}\nimport sys\nopen(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')\n")
    program.chmod(stat.S_IRWXU)
    admin = Admin(stream.app())
    admin.alarms.create("late", on="lag", command=f"{program} '{out}'")
    turn = _duty(stream)
    wait_until(lambda: (turn(), "add it to the setting alarm_commands" in caplog.text)[1])
    assert not out.exists()
    assert "alarm_commands" in str(send_test(stream.app(), "late")["command"])
    stream.rows("UPDATE ems_alarm_event SET due_at = NOW(6)")
    turn = _duty(stream, Settings(url="mysql://x@y/z", alarm_commands=(str(program),)))
    wait_until(lambda: (turn(), not stream.rows("SELECT * FROM ems_alarm_event"))[1])
    assert [json.loads(line)["event"] for line in out.read_text().splitlines()] == ["firing"]
    assert send_test(stream.app(), "late", [str(program)]) == {"command": None}
    assert json.loads(out.read_text().splitlines()[-1])["event"] == "test"
    admin.alarms.create("late", on="lag", command=f"{program} /", replace=True)
    assert "ended with 1" in str(send_test(stream.app(), "late", [str(program)])["command"])


def test_rules_are_checked_replaced_and_deleted_with_what_they_found(stream: Stream) -> None:
    _backlog(stream)
    admin = Admin(stream.app())
    with pytest.raises(ConfigError) as caught:
        admin.alarms.create("x", on="lag", above=-1, for_s=-1, webhook="file:///etc/passwd", command="'")
    assert [problem.name for problem in caught.value.problems] == ["above", "for_s", "webhook", "command"]
    with pytest.raises(ConfigError, match="must be one of lag"):
        admin.alarms.create("x", on="mood")
    admin.alarms.create("x", on="lag", webhook="http://127.0.0.1:1/")
    with pytest.raises(AlreadyExists):
        admin.alarms.create("x", on="oldest")
    _duty(stream)()
    assert len(admin.alarms.list()[0].firing) == 1
    admin.alarms.create("x", on="lag", above=100, replace=True)
    assert (admin.alarms.list()[0].alarms, stream.rows("SELECT * FROM ems_alarm_event")) == ((), [])
    admin.alarms.delete("x")
    for call in (admin.alarms.delete, partial(send_test, stream.app())):
        with pytest.raises(UnknownAlarm):
            call("x")
    admin.alarms.create("gone", on="lag")
    _duty(stream)()
    admin.delete_group("orders", "billing")
    _duty(stream)()
    assert admin.alarms.list()[0].alarms == (), "a group that is deleted has no lag"


SECRET = "sixteen letters!"


def test_each_kind_of_receiver_is_told_in_its_own_form(stream: Stream) -> None:
    topic, group = _backlog(stream)
    admin = Admin(stream.app())
    turn = _duty(stream, Settings(url="mysql://x@y/z", alarm_secret=SECRET))
    with receiver() as web, receiver() as slack, receiver() as manager:
        base = manager.url.removesuffix("/alarms")
        to = {"webhook": web.url, "slack": slack.url, "alertmanager": f"{base}/"}
        admin.alarms.create("late", on="lag", above=5, repeat_s=300, **to)
        wait_until(lambda: (turn(), web.got and slack.got and manager.got)[1])
        _drain(stream, topic, group)
        wait_until(lambda: (turn(), len(web.got) == len(slack.got) == len(manager.got) == 2)[1])
        wait_until(lambda: (turn(), not stream.rows("SELECT * FROM ems_alarm_event"))[1])
        assert send_test(stream.app(), "late", secret=SECRET) == dict.fromkeys(to)
    _, headers, body = web.posts[0]
    assert abs(time.time() - int(headers["X-Ems-Timestamp"])) < 600
    signed = f"{headers['X-Ems-Timestamp']}.{body}".encode()
    assert headers["X-Ems-Signature"] == "v1=" + hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest()
    assert not any("X-Ems-Signature" in one for _, one, _ in [*slack.posts, *manager.posts])
    assert slack.got[0] == {"text": "late firing: lag of orders/billing is 20 (alarm above 5)"}
    assert delivery._for_slack('{"text": "<!channel> & all"}') == '{"text": "&lt;!channel&gt; &amp; all"}'
    assert [path for path, _, _ in manager.posts] == ["/api/v2/alerts"] * 3
    (firing,), (resolved,), (tried,) = manager.got
    assert firing["labels"] == {"alertname": "late", "metric": "lag", "topic": "orders", "group": "billing"}
    assert firing["labels"] == resolved["labels"] and firing["startsAt"] == resolved["startsAt"]
    at = {name: datetime.fromisoformat(one["endsAt"]) for name, one in (("firing", firing), ("resolved", resolved))}
    assert at["firing"] - datetime.fromisoformat(firing["startsAt"]) >= timedelta(seconds=900)
    assert datetime.fromisoformat(resolved["startsAt"]) <= at["resolved"] < at["firing"]
    assert datetime.fromisoformat(tried["endsAt"]) <= datetime.fromisoformat(tried["startsAt"]), "a test does not stay"
    assert tried["labels"]["event"] == "test", "it resolves no other"


def test_alarms_are_repeated_and_silenced(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = _backlog(stream)
    admin = Admin(stream.app())
    turn, other = _duty(stream), _duty(stream)

    def count() -> int:
        """Of the notifications, after some more turns of two beats."""
        for _ in range(2):
            turn(), other()
        wait_until(lambda: (turn(), other(), not stream.rows("SELECT * FROM ems_alarm_event"))[2])
        return len(web.got)

    with receiver() as web:
        admin.alarms.create("late", on="lag", repeat_s=60, webhook=web.url)
        assert count() == 1 and count() == 1
        stream.rows("UPDATE ems_alarm SET told_at = told_at - INTERVAL 61 SECOND")
        assert count() == 2, "once, however many beats there are"
        with pytest.raises(UnknownAlarm):
            admin.alarms.silence("nothing", for_s=60)
        with pytest.raises(ConfigError, match="for_s"):
            admin.alarms.silence(for_s=0)
        silence = admin.alarms.silence("late", topic="orders", for_s=60, reason="known")
        assert admin.alarms.silences() == (silence,) and silence.reason == "known"
        stream.rows("UPDATE ems_alarm SET told_at = told_at - INTERVAL 61 SECOND")
        assert count() == 2
        _drain(stream, topic, group)
        assert count() == 3 and web.got[-1]["event"] == "resolved", "who was told is told the end"
        stream.app().send_many("orders", range(5))
        assert count() == 3 and "late firing" in caplog.text and "(silenced)" in caplog.text
        assert admin.alarms.list()[0].firing
        _drain(stream, topic, group)
        assert count() == 3 and not admin.alarms.list()[0].firing, "who was not told is not told the end"
        stream.app().send_many("orders", range(5))
        assert count() == 3
        admin.alarms.unsilence(silence.silence_id)
        assert count() == 4 and web.events[-1] == ("late", "firing"), "it still fires"
        with pytest.raises(UnknownAlarm):
            admin.alarms.unsilence(silence.silence_id)


def test_the_dead_mans_switch_is_pinged_while_alarms_get_through(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver() as switch:
        settings = Settings(url="mysql://x@y/z", dead_man_url=f"{switch.url}?key=s3cret", dead_man_s=1)
        service = PingDeadMan()
        switch.answers = [500]

        def turn() -> float:
            service._due_at = 0.0
            return service(stream.session, settings)

        wait_until(lambda: (turn(), len(switch.pings) >= 2)[1])
        wait_until(lambda: (turn(), "cannot ping the dead-man's switch" in caplog.text)[1])
        assert "answered 500" in caplog.text and "s3cret" not in caplog.text
        assert switch.pings[0] == "/alarms?key=s3cret"
        wait_until(lambda: (service(stream.session, settings), not service._flying)[1])
        stream.rows(
            "INSERT INTO ems_alarm_event (alarm_id, rule, target, body, created_at, due_at) "
            "VALUES ('x', 'late', 'slack', '{}', NOW(6) - INTERVAL 1 HOUR, NOW(6) + INTERVAL 1 HOUR)"
        )
        before = len(switch.pings)
        turn()
        assert not service._flying and len(switch.pings) == before and "is not pinged" in caplog.text
    assert PingDeadMan()(stream.session, SETTINGS) > 60, "there is no switch"


def test_each_server_has_a_dead_mans_switch_of_its_own(stream: Stream) -> None:
    with receiver() as switch:
        two = "east=mysql://x@east/y orders.*"
        settings = Settings(url="mysql://x@y/z", servers=two, dead_man_url=f"{switch.url}/{{server}}")
        services = [PingDeadMan("main"), PingDeadMan("east")]
        wait_until(lambda: ([one(stream.session, settings) for one in services], len(switch.pings) == 2)[1])
        assert sorted(switch.pings) == ["/alarms/east", "/alarms/main"]
    with pytest.raises(ConfigError, match=r"dead_man_url = .*: must contain \{server\}"):
        Settings(url="mysql://x@y/z", servers=two, dead_man_url="https://switch/s3cret")


def test_a_lock_that_holds_up_others_for_long_is_an_alarm_of_the_stream(stream: Stream) -> None:
    Admin(stream.app()).alarms.create("held", on="locked", above=0.2)
    locks = WatchLocks()
    locks.held_s = 0.7
    WatchAlarms(locks)(stream.session, SETTINGS)
    assert stream.rows("SELECT rule, topic, state, value > 0.5 FROM ems_alarm") == [("held", "", "firing", 1)]
