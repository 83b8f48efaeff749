"""Alarms of flows that are late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.alarms.watch import WatchAlarms
from emsworker.core import extension
from emsworker.core.config import Settings
from emsworker.core.errors import SchemaMissing
from emsworker.store.engine.database import Database
from tests.flows import shop as flows
from tests.process.stream import Stream
from tests.support.commands import Ems as Command
from tests.support.roles import users
from tests.support.webhooks import receiver

NAME = flows.waits.name


def _turn(url: str) -> Callable[[], None]:
    """Turns of one beat's alarms; each measures."""
    alarms, database = WatchAlarms(), Database(url)

    def turn() -> None:
        alarms._next_watch = 0.0
        database.call(lambda session: alarms(session, Settings(url=url, beat_s=0.05)))

    return turn


def _firing(admin: Admin) -> dict[str, list[tuple[str, str, bool]]]:
    return {
        one.rule.name: [(alarm.topic, alarm.group, alarm.value > 3000) for alarm in one.firing]
        for one in admin.alarms.list(addresses=False)
    }


def _age(stream: Stream, handle: Any, seconds: int) -> None:
    stream.run("UPDATE ems_flow SET started_at = started_at - INTERVAL %s SECOND WHERE `key` = %s", seconds, handle.id)


def test_a_flow_that_is_late_is_an_alarm_of_its_function(stream: Stream, shop: Ems) -> None:
    admin = Admin(shop)
    late, other = flows.waits.start(), flows.middle.start()
    flows.waits.start()
    with users(stream.server, stream.url) as make, receiver() as web:
        turn = _turn(make("beat"))
        admin.alarms.create("late", on="flow_age", above=3600, group=NAME)
        admin.alarms.create("any", on="flow_age", above=3600, webhook=web.url)
        admin.alarms.create("elsewhere", on="flow_age", above=0, topic="another")
        turn()
        assert _firing(admin) == {"any": [], "elsewhere": [], "late": []}
        _age(stream, late, 3601)
        _age(stream, other, 3500)
        turn()
        assert _firing(admin) == {"any": [("default", NAME, True)], "elsewhere": [], "late": [("default", NAME, True)]}
        _age(stream, other, 200)
        turn()
        assert _firing(admin)["any"] == [("default", flows.middle.name, True), ("default", NAME, True)]
        late.cancel()
        other.cancel()
        turn()
        assert _firing(admin) == {"any": [], "elsewhere": [], "late": []}
        for _ in range(1000):
            turn()
            if len(web.got) == 4:
                break
    texts = sorted(one["text"] for one in web.got)  # type: ignore[index]
    assert texts[0].startswith(f"any firing: flow_age of default/{flows.middle.name} is 370")
    assert sum("resolved" in text and "gone" not in text for text in texts) == 2, texts


def test_the_command_takes_it_and_says_what_is_missing(stream: Stream, shop: Ems, tmp_path: Path) -> None:
    ems = Command({"EMS_URL": stream.url}, tmp_path)
    assert "flow_age" in ems.ok("alarms", "create", "--help").out
    made = ems.ok("alarms", "create", "late", "--on", "flow_age", "--above", "1h", "--group", NAME)
    assert "3600" in made.out and not made.err, "a function is no group, and nobody is warned of it"
    flows.waits.start()
    stream.run("DELETE FROM ems_extension_version WHERE extension = 'flows'")
    turn = _turn(stream.url)
    turn()
    with pytest.raises(SchemaMissing, match="ems migrate --with flows"):
        Admin(shop).alarms.create("more", on="flow_age")


def test_a_rule_of_an_extension_that_is_not_here_is_left_alone(
    stream: Stream, shop: Ems, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, turn = Admin(shop), _turn(stream.url)
    admin.alarms.create("late", on="flow_age", above=10)
    admin.alarms.create("refused", on="refused")
    _age(stream, flows.waits.start(), 3601)
    turn()
    assert _firing(admin)["late"]
    monkeypatch.setattr(extension, "extensions", lambda: {})
    turn()
    assert _firing(admin) == {"late": [("default", NAME, True)], "refused": []}, (
        "it stays as it is, and others are measured"
    )
    admin.alarms.delete("late")
