"""``ems messages``: what it prints and how it ends; the looking itself is tested with the store."""

import io
from contextlib import redirect_stderr, redirect_stdout

import pytest

from emsworker import Ems as App
from emsworker.cli.main import ems as command
from tests.support.commands import Done


class Here:
    """The command in this process: a process of its own takes half a second each time."""

    def __call__(self, *arguments: str) -> Done:
        """Run it to its end."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
            command.main(list(arguments), prog_name="ems")
        code = end.value.code
        assert isinstance(code, int)
        return Done(code, out.getvalue(), err.getvalue())

    def ok(self, *arguments: str) -> Done:
        """Run it; it must succeed."""
        done = self(*arguments)
        assert done.code == 0, done
        return done


@pytest.fixture
def ems(url: str, monkeypatch: pytest.MonkeyPatch) -> Here:
    """On a migrated stream."""
    monkeypatch.setenv("EMS_URL", url)
    return Here()


def test_messages_are_listed_shown_and_found(ems: Here, app: App) -> None:
    sent = app.send_many("orders", [{"n": n} for n in range(30)], tag="new")
    ems.ok("groups", "create", "orders", "mail")
    where = ("messages", "list", "orders", "--where", "body.n >= 10 and tag = 'new'", "--limit", "15")
    page = ems.ok(*where, "--json").json
    assert [one["body"]["n"] for one in page["messages"]] == list(range(10, 25))
    assert (page["after"], page["looked_at"], page["unreadable"]) == ("0/25", 30, 0)
    rest = ems.ok(*where, "--after", page["after"])
    assert [sent[n].id in rest.out for n in (24, 25, 29)] == [False, True, True] and "Looked at 5" in rest.err
    bad = ems("messages", "list", "orders", "--where", "body.n >= 10 and tagg = 'new'")
    assert bad.code == 2 and "at position 18: there is no field 'tagg'" in bad.errors[0]
    assert [one["offset"] for one in ems.ok("messages", "peek", "orders", "mail", "--json").json["messages"]][-1] == 10
    assert "n: 3" in ems.ok("messages", "get", sent[3].id).out.replace('"', "")
    never = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    assert ems("messages", "get", never).code == 1
    held = ems("messages", "contains", "orders", sent[0].id, never, "--json")
    assert (held.code, held.json) == (1, [{"id": sent[0].id, "where": "stream"}, {"id": never, "where": None}])
    assert ems.ok("messages", "contains", "orders", sent[0].id).out


def test_messages_are_replayed(ems: Here, app: App) -> None:
    app.send_many("orders", [{"n": n} for n in range(30)])
    ems.ok("groups", "create", "orders", "mail")
    ems.ok("groups", "create", "orders", "other")
    ems.ok("groups", "reset", "orders", "mail", "--to", "21", "--yes")
    replay = ("groups", "replay", "orders", "mail")
    for wrong in ((), ("--all", "--key", "x"), ("--where", "n = 1"), ("--from", "soon"), ("--all", "--after", "7")):
        done = ems(*replay, *wrong, "--yes")
        assert done.code == 2 and "Error: " in done.err, done
    chosen = ("--where", "body.n >= 15", "--json")
    planned = ems.ok(*replay, *chosen, "--dry-run").json
    wanted = {"partition": 0, "lo": 1, "hi": 30, "chosen": 15, "again": 5, "live": 0, "unclaimed": 10, "unreadable": 0}
    assert planned == [wanted]
    refused = ems(*replay, *chosen)
    assert refused.code == 2 and "Run 5 messages again" in refused.err
    assert ems.ok(*replay, *chosen, "--yes").json == [wanted]
    assert ems.ok(*replay, *chosen, "--yes").json == [wanted | {"again": 0, "live": 5}]
    listed = {one["group"]: one for one in ems.ok("groups", "list", "--json").json}
    assert (listed["mail"]["retries"], listed["mail"]["unclaimed"]) == (5, 10)
    assert (listed["other"]["lag"], listed["other"]["unclaimed"]) == (30, 30)
    assert "again" in ems.ok(*replay, "--from", "3", "--to", "7", "--after", "0/4", "--yes").out.lower()
    assert ems.ok("groups", "list", "orders", "--json").json[0]["waiting"] == 3


def test_a_backlog_is_skipped(ems: Here, app: App) -> None:
    app.send_many("orders", [{"n": n} for n in range(30)])
    ems.ok("groups", "create", "orders", "mail")
    assert ems("groups", "skip", "orders", "mail", "--yes").code == 2
    wanted = [{"partition": 0, "cursor": 1, "to": 21, "skipped": 20}]
    assert ems.ok("groups", "skip", "orders", "mail", "--keep", "10", "--dry-run", "--json").json == wanted
    refused = ems("groups", "skip", "orders", "mail", "--keep", "10")
    assert refused.code == 2 and "Skip 20 messages" in refused.err
    assert ems.ok("groups", "skip", "orders", "mail", "--keep", "10", "--yes", "--json").json == wanted
    assert "nothing to skip" in ems.ok("groups", "skip", "orders", "mail", "--older-than", "1h", "--yes").err
    changed = ems.ok("groups", "change", "orders", "mail", "--skip-lag", "5", "--skip-older-than", "90s", "--json").json
    assert changed["skips"] == "more than 5 waiting and older than 90s"
    listed = ems.ok("groups", "list", "--json").json[0]
    assert (listed["skipped"], listed["unclaimed"], listed["skips"]) == (20, 10, changed["skips"])
    assert ems.ok("groups", "change", "orders", "mail", "--no-skip", "--json").json["skips"] == "nothing"
    assert ems("groups", "change", "orders", "mail", "--no-skip", "--skip-lag", "1").code == 2
