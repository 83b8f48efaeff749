"""``ems flows``, as operators use it."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from tests.flows import depot
from tests.process.stream import Stream
from tests.support.commands import Ems as Command
from tests.support.roles import users
from tests.support.waiting import until

DEPOT = "tests.flows.depot:app"


@pytest.fixture
def app(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The app of the depot, on the stream; its flows are run by a worker."""
    monkeypatch.setenv(depot.MENDED, str(stream.record.folder))
    before = depot.app.settings.url
    depot.app.reconfigure(url=stream.url)
    stream.worker(DEPOT)
    yield
    depot.app.close()
    depot.app.reconfigure(url=before)


@pytest.fixture
def command(stream: Stream, server: LocalDatabase, tmp_path: Path) -> Iterator[Command]:
    """``ems`` with the rights of an operator alone."""
    with users(server, stream.url) as make:
        yield Command({"EMS_URL": make("operator")}, tmp_path)


def _state(stream: Stream, key: str, state: str) -> None:
    found = "SELECT state FROM ems_flow WHERE `key` = %s"
    until(lambda: stream.rows(found, key) == [(state,)], 30, stream.logs())


def _audit(stream: Stream) -> list[tuple[str, str, int]]:
    return [
        (action, target, int(changed))
        for action, target, changed in stream.rows(
            "SELECT action, target, SUM(changed) FROM ems_audit GROUP BY action_id, action, target ORDER BY action_id"
        )
    ]


def test_what_failed_overnight_runs_on_from_where_it_failed(app: None, stream: Stream, command: Command) -> None:
    for n in range(12):
        depot.ship.start(n, id=f"ship-{n}", attributes={"customer": n % 2})
    depot.shelf.start(1, id="shelf-1")
    until(lambda: stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state = 'failed'") == [(12,)], 60, stream.logs())
    _state(stream, "shelf-1", "waiting")

    listed = command.ok("flows", "list", "--state", "failed", "--limit", "5", "--json").json
    assert len(listed["flows"]) == 5 and {one["error"] for one in listed["flows"]} == {"CallFailed"}
    seen = [one["id"] for one in listed["flows"]]
    while listed["after"]:
        listed = command.ok(
            "flows", "list", "--state", "failed", "--limit", "5", "--after", listed["after"], "--json"
        ).json
        seen += [one["id"] for one in listed["flows"]]
    assert sorted(seen) == sorted(f"ship-{n}" for n in range(12))
    ones = command.ok("flows", "list", "--attribute", "customer=1", "--limit", "4", "--json").json
    more = command.ok("flows", "list", "--attribute", "customer=1", "--after", ones["after"], "--json").json
    assert [one["id"] for one in ones["flows"] + more["flows"]] == [f"ship-{n}" for n in (11, 9, 7, 5, 3, 1)]
    waiting = command.ok("flows", "list", "--waits", "signal", "--json").json["flows"]
    assert [one["id"] for one in waiting] == ["shelf-1"]
    assert command.ok("flows", "list", "--since", "1h", "--until", "30m", "--json").json["flows"] == []
    counted = command.ok("flows", "list", "--by", "state", "--by", "error", "--json").json
    assert {(one["state"], one["error"], one["count"]) for one in counted} == {
        ("failed", "CallFailed", 12),
        ("waiting", None, 1),
    }

    shown = command.ok("flows", "show", "ship-3", "--json").json
    assert [(step["kind"], step["state"]) for step in shown["steps"]] == [("step", "done"), ("call", "failed")]
    assert shown["args"] == [3] and shown["attributes"] == {"customer": "1"}
    dead = command.ok("dead", "show", shown["failed"][0]["message"], "--json").json
    assert "the packer is down" in dead[0]["error"]
    assert "call" in command.ok("flows", "show", "ship-3").out

    depot.mend()
    dry = command.ok("flows", "retry", "--all", "--attribute", "customer=1", "--dry-run", "--json").json
    assert dry == {"would_be_retried": 6, "capped": False} and _audit(stream) == []
    refused = command("flows", "retry", "--all")
    assert refused.code == 2 and "Retry 12 flows?" in refused.err
    done = command.ok("flows", "retry", "--all", "-y", "--json").json
    assert done == {"retried": 12, "refused": {}}
    until(lambda: stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state = 'done'") == [(12,)], 60, stream.logs())
    assert sorted(stream.record.numbers("weigh")) == list(range(12)), "finished steps are not run again"
    assert sorted(n for (n,) in stream.rows("SELECT n FROM effect")) == list(range(12))
    assert _audit(stream) == [("retry flows", "state failed", 12)]


def test_a_step_is_run_again_by_its_name(app: None, stream: Stream, command: Command) -> None:
    depot.ship.start(5, id="five")
    _state(stream, "five", "failed")
    depot.mend()
    wrong = command("flows", "retry", "five", "--from", "fly")
    assert wrong.code == 1 and "no step 'fly'; it has recorded weigh, tests.flows.depot.pack" in wrong.err
    command.ok("flows", "retry", "five", "--from", "weigh")
    _state(stream, "five", "done")
    assert stream.record.numbers("weigh") == [5, 5]
    again = command("flows", "retry", "five")
    assert again.code == 1 and "left as" in again.err


def test_what_was_undone_is_not_taken_for_done(app: None, stream: Stream, command: Command) -> None:
    depot.undoing.start(6, id="six")
    _state(stream, "six", "failed")
    assert stream.record.numbers("unpack") == [6]
    depot.mend()
    for step in ([], ["--from", "1"]):
        refused = command("flows", "retry", "six", *step)
        assert refused.code == 1 and "were undone, so it cannot go on; start it anew" in refused.err
    counted = command.ok("flows", "retry", "--all", "--dry-run", "--json").json
    assert (
        counted["would_be_retried"] == 0 and command.ok("flows", "retry", "--all", "-y", "--json").json["retried"] == 0
    )
    assert command.ok("flows", "show", "six", "--json").json["undone"] is True
    found = [one for one in command("check", "--json").json if one["name"] == "flows"]
    assert "1 flow failed and was undone: it is over" in {one["value"] for one in found}
    assert {one["severity"] for one in found} == {"ok"}
    ((reason,),) = stream.rows("SELECT error FROM ems_dead WHERE error LIKE '%%flow%%six%%'")
    assert "so it is over" in reason and "retry" not in reason
    assert stream.rows("SELECT state FROM ems_flow") == [("failed",)] and stream.record.numbers("weigh") == [6]


def test_a_flow_is_signalled_cancelled_and_deleted(app: None, stream: Stream, command: Command) -> None:
    for n in range(4):
        depot.shelf.start(n, id=f"shelf-{n}")
        _state(stream, f"shelf-{n}", "waiting")
    assert command("flows", "signal", "shelf-0", "picked", "{not json").code == 2
    command.ok("flows", "signal", "shelf-0", "picked", '{"by": "Ada"}')
    _state(stream, "shelf-0", "done")
    shown = command.ok("flows", "show", "shelf-0", "--json").json
    assert shown["value"] == {"by": "Ada"} and [one["name"] for one in shown["signals"]] == ["picked"]
    emitted = command.ok("flows", "show", "shelf-0", "--values").out.splitlines()
    assert [json.loads(line) for line in emitted] == [{"n": 0}, "waiting"]
    late = command("flows", "signal", "shelf-0", "picked")
    assert late.code == 1 and "has ended (done)" in late.err

    done = command("flows", "cancel", "shelf-9", "shelf-1", "shelf-0", "shelf-8")
    assert (done.code, done.out) == (1, "Cancelled 1 flow.\n")
    assert done.errors == [
        "Error: there is no flow 'shelf-9'",
        "Error: flow 'shelf-0' is done; it is left as it is",
        "Error: there is no flow 'shelf-8'",
    ]
    _state(stream, "shelf-1", "cancelled")
    assert command("flows", "cancel", "shelf-9", "--json").json["refused"] == {"shelf-9": "there is no flow 'shelf-9'"}
    assert (
        command.ok("flows", "cancel", "--all", "--name", "tests.flows.depot.shelf", "-y").out == "Cancelled 2 flows.\n"
    )

    running = depot.shelf.start(9, id="shelf-9")
    assert command("flows", "delete", "shelf-9", "-y").code == 1 and running.state != "deleted"
    command.ok("flows", "delete", "shelf-0", "shelf-1", "-y")
    gone = command("flows", "show", "shelf-0")
    assert gone.code == 1 and "there is no flow 'shelf-0'" in gone.err
    until(lambda: stream.rows("SELECT COUNT(*) FROM ems_flow WHERE state = 'deleted'") == [(0,)], 60, stream.logs())
    assert stream.rows("SELECT COUNT(*) FROM ems_flow_value") == [(6,)]
    assert depot.shelf.start(0, id="shelf-0").created, "its id is free"
    assert [one[0] for one in _audit(stream)] == ["signal flow", "cancel flows", "cancel flows", "delete flows"]


def test_children_are_shown_and_left_to_their_parents(app: None, stream: Stream, command: Command) -> None:
    depot.outer.start(8, id="outer")
    _state(stream, "outer", "failed")
    shown = command.ok("flows", "show", "outer", "--json").json
    (child,) = shown["children"]
    assert child["state"] == "failed" and shown["steps"][0]["message"] is None
    assert command.ok("flows", "show", child["id"], "--json").json["parent"] == "outer"
    depot.mend()
    assert command.ok("flows", "retry", "--all", "-y", "--json").json["retried"] == 1
    _state(stream, "outer", "done")


def test_wrong_use_is_told(stream: Stream, command: Command) -> None:
    for wrong in (
        ["retry"],
        ["retry", "one", "--all"],
        ["retry", "one", "--state", "failed"],
        ["list", "--state", "lost"],
        ["list", "--attribute", "customer"],
        ["list", "--by", "name", "--after", "x"],
        ["list", "--since", "soon"],
    ):
        done = command("flows", *wrong)
        assert done.code == 2, (wrong, done)
    assert command("flows", "list", "--after", "rubbish").code == 2
    assert command.ok("flows", "list").err == "There are no such flows.\n"


def test_a_viewer_sees_states_and_no_values(app: None, stream: Stream, server: LocalDatabase, tmp_path: Path) -> None:
    depot.ship.start(3, id="secret", attributes={"customer": 1})
    _state(stream, "secret", "failed")
    with users(server, stream.url) as make:
        viewer, reader = (Command({"EMS_URL": make(role)}, tmp_path) for role in ("viewer", "reader"))
        shown = viewer.ok("flows", "show", "secret", "--json")
        assert "Left out: arguments, values and errors" in shown.err
        assert shown.json["args"] is None and shown.json["error"] == "CallFailed"
        assert viewer.ok("flows", "list", "--json").json["flows"][0]["id"] == "secret"
        assert viewer.ok("flows", "list", "--by", "name").out
        assert viewer.ok("flows", "list", "--attribute", "customer=1", "--json").json["flows"]
        assert reader.ok("flows", "show", "secret", "--json").json["args"] == [3]
        denied = viewer("flows", "cancel", "secret")
        assert denied.code == 1
        assert reader("flows", "retry", "secret").code == 1
    assert stream.rows("SELECT state FROM ems_flow") == [("failed",)]


@pytest.mark.parametrize("typed", ["", "\n \n"])
def test_an_input_without_ids_changes_no_flow(app: None, stream: Stream, command: Command, typed: str) -> None:
    depot.shelf.start(1, id="shelf-1")
    _state(stream, "shelf-1", "waiting")
    for verb in ("cancel", "retry", "delete"):
        assert "0 flows" in command.ok("flows", verb, "-", "--yes", stdin=typed).out
    assert stream.rows("SELECT state FROM ems_flow") == [("waiting",)]
    assert _audit(stream) == []
