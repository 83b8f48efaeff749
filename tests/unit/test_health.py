"""The health of a worker: which states of its children count, and what a child finds out about itself."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emsworker.beat.leader import BeatHealth
from emsworker.core.errors import AccessDenied
from emsworker.observe.http import HttpRequest
from emsworker.worker.child import Child
from emsworker.worker.child_spec import ChildHealth, ChildSpec
from emsworker.worker.health import ChildState, ChildView, WorkerHealth
from emsworker.worker.probes import worker_routes

WELL = {ChildState.STARTING, ChildState.WORKING, ChildState.AWAY, ChildState.ENDING}


def worker(*states: ChildState, started: bool = True, stopping: bool = False, turned_s: float = 0.1) -> WorkerHealth:
    children = tuple(ChildView(number, 1, state, "for a reason") for number, state in enumerate(states))
    return WorkerHealth(children, started, stopping, turned_s, len(states))


@pytest.mark.parametrize("state", ChildState)
def test_a_worker_lives_while_any_child_makes_progress_or_will(state: ChildState) -> None:
    assert (worker(state).unlive == "") is (state in WELL)
    assert worker(ChildState.CRASHED, state).unlive == "" or state not in WELL
    assert (worker(state).unready == "") is (state is ChildState.WORKING)
    assert worker(state, stopping=True).unlive == "" and worker(state, stopping=True).unready
    assert worker(state, started=False).unstarted and worker(state, started=False).unready
    assert "no progress for 200 s" in worker(state, turned_s=200).unlive


def test_the_reason_names_every_child() -> None:
    found = worker(ChildState.CRASHED, ChildState.FROZEN)
    assert found.unlive == "child 0 is crashed: for a reason; child 1 is frozen: for a reason"
    told = found.to_json(found.unlive)
    assert not told["ok"] and [child["state"] for child in told["children"]] == ["crashed", "frozen"]


def test_a_worker_shows_that_its_beat_fails_and_takes_messages_all_the_same(tmp_path: Path) -> None:
    led = BeatHealth(
        alive=True,
        leading=True,
        answered=True,
        silent_s=0.0,
        turned_s=0.0,
        locked_s=0.0,
        runs={},
        failures={},
        refusal="no",
        failing={"relay": "lost"},
    )
    for beat in (led, None):
        routes = worker_routes(lambda: worker(ChildState.WORKING), tmp_path, lambda beat=beat: beat)  # type: ignore[misc]
        answer = routes["readyz"](HttpRequest((), {}))
        told = json.loads(answer.body)
        assert answer.status == 200 and told["ok"] and len(told["children"]) == 1
        shown = {
            "ok": False,
            "reason": "the server refuses the user: no",
            "leading": True,
            "failing": {"relay": "lost"},
        }
        assert told.get("beat") == (shown if beat else None)


def test_a_report_survives_its_way() -> None:
    health = ChildHealth("it hangs", "")
    assert ChildHealth.from_text(health.to_text()) == health
    assert ChildHealth.from_text("health: {") == ChildHealth()


def child(now: float, *, idle_s: float = 0.0, ran_s: float | None = None, hang: str = "", **lease: Any) -> Child:
    """One whose only thread turned so long ago, and perhaps runs a message since."""
    made = Child(ChildSpec("a", (), (), 1, "", "", "info", -1))
    thread = SimpleNamespace(name="ems-consumer-0", ident=1, turned_at=now - idle_s)
    claims = SimpleNamespace(
        overdue=lambda since: hang, began_at=lambda ident, now: 0.0 if ran_s is None else now, hanging=set()
    )
    good = {"good": True, **lease}
    poller = SimpleNamespace(looked_at=now - good.pop("looked_s", 0.0), refused_by=good.pop("refused_by", None))
    broker = SimpleNamespace(database=SimpleNamespace(full=good.pop("full", "")))
    lease = SimpleNamespace(refused_by=None, **good)
    context: Any = SimpleNamespace(claims=claims, lease=lease, poller=poller, broker=broker)
    made._consumers, made._context, made._poll_max_s = [thread], context, 1.0  # type: ignore[list-item]
    return made


def test_a_child_tells_stalled_threads_from_a_server_that_is_away() -> None:
    now = 1_000.0  # whatever the machine has been up for
    assert child(now)._health(now) == ChildHealth()
    assert child(now, idle_s=100)._health(now) == ChildHealth(), "a call of the server may take that long"
    assert child(now, idle_s=500, ran_s=400)._health(now) == ChildHealth(), "a long task within its limit"
    assert "ems-consumer-0 has made no progress for 500 s" in child(now, idle_s=500)._health(now).stalled
    assert child(now, hang="it hangs")._health(now).stalled == "it hangs"
    assert "leases" in child(now, good=False)._health(now).away
    refused = child(now, good=False, refused_by=AccessDenied("no such user"))._health(now)
    assert refused.away == "the server refuses the user: no such user" and refused.refusal == "no such user"
    assert child(now, full="no room")._health(now).away == "the disk of the server is full: no room"
    assert "no look for work" in child(now, looked_s=30)._health(now).away
