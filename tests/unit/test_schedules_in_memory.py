"""Schedules in the test app: fired by its clock, or for a slot that the test names."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.errors import ConfigError, UnknownSchedule


@pytest.fixture
def app() -> Ems:
    app = Ems("shop")
    app.slots = []  # type: ignore[attr-defined]

    @app.periodic("0 3 * * *", args=["all"])
    @app.task(name="report", bind=True)
    def report(self: Any, kind: str) -> None:
        app.slots.append((kind, self.request.headers["ems-slot"]))  # type: ignore[attr-defined]

    return app


def test_a_periodic_task_reads_the_slot_that_a_test_names(app: Ems) -> None:
    with app.test() as test:
        sent = test.fire("report", datetime(2026, 1, 31, 2, 0))
        assert test.run() == 1 and app.slots == [("all", "2026-01-31T02:00:00+00:00")]  # type: ignore[attr-defined]
        assert test.fire("report", datetime(2026, 1, 31, 2, 0, tzinfo=UTC)) == sent and test.run() == 0, "a slot is one"
        test.fire("report")
        test.run()
        assert len(app.slots) == 2  # type: ignore[attr-defined]
        with pytest.raises(UnknownSchedule, match="'nightly'"):
            test.fire("nightly")


def test_the_clock_fires_each_slot_once(app: Ems) -> None:
    with app.test() as test:
        app.schedules.add("hourly", "report", every=3600.0, args=["one"], tag="vip", expires=3600)
        assert test.fire_due() == 0
        test.advance(5 * 3600)
        app.schedules.change("hourly", args=["two"])
        due = test.fire_due()
        assert due >= 5 and test.fire_due() == 0
        test.run_due()
        hours = sorted(slot for kind, slot in app.slots if kind == "two")  # type: ignore[attr-defined]
        assert len(hours) == 1, "the others have expired"
        test.advance(24 * 3600)
        app.schedules.pause("hourly")
        assert test.fire_due() == 1, "the nightly one"
        app.schedules.resume("hourly")
        assert test.fire_due() == 0, "what passed meanwhile is left out"
        test.advance(3600)
        assert test.fire_due() >= 1
        app.schedules.delete("hourly")
        test.advance(3600)
        assert {row.name for row in app.schedules.list()} == {"report"}
        assert [message.tag for message in test.sent if message.tag] == ["vip"] * (len(test.sent) - 1)


def test_a_rollback_takes_back_what_was_done_to_schedules(app: Ems) -> None:
    with app.test():
        app.schedules.add("old", "report", every=60.0, args=[1])
        before = app.schedules.list()
        with pytest.raises(KeyError), app.transaction() as tx:
            app.schedules.add("new", "report", every=60.0, args=[1], transaction=tx)
            app.schedules.pause("report", transaction=tx)
            app.schedules.delete("old", transaction=tx)
            raise KeyError
        assert app.schedules.list() == before
        for use in (app.schedules.delete, app.schedules.change):
            with pytest.raises(ConfigError, match="declares it in its code"):
                use("report")
        assert app.schedules.list(prefix="o", limit=1) == before[:1] and app.schedules.list(after="old") == before[1:]
        assert before[0].next_at - datetime.now(UTC) <= timedelta(seconds=60)
