"""Changes: what each does, its row in the audit of the same transaction, and the way back to the page."""

import re
import threading
from typing import Any

import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from emsworker.admin import Admin
from emsworker.cli.main import ems
from emsworker.local import LocalDatabase
from tests.store.test_flat_cost import SEQUENCE
from tests.support.recycling import recycled_database
from tests.support.roles import users
from tests.support.servers import connect
from tests.support.streams import Stream, open_stream
from tests.web.conftest import Visiting


def _post(client: TestClient, path: str, **fields: Any) -> str:
    """Send a form, and return the page to which it leads."""
    found = client.post(path, data={"back": "/dead?topic=orders&task=shop.charge", **fields})
    assert found.status_code == 303, found.text
    target = found.headers["location"]
    assert target.startswith(fields.get("back", "/dead?topic=orders&task=shop.charge"))
    return client.get(target).text


def _dead(stream: Stream) -> set[int]:
    return {int(row[0]) for row in stream.rows("SELECT `offset` FROM ems_dead")}


def _last(stream: Stream) -> tuple[Any, ...]:
    return stream.rows(
        "SELECT actor, action, target, SUM(changed) FROM ems_audit GROUP BY action_id, actor, action, target "
        "ORDER BY action_id DESC LIMIT 1"
    )[0]


def test_an_operator_does_everything_as_the_role_operator(
    stream: Stream, visit: Visiting, server: LocalDatabase
) -> None:
    with users(server, stream.url) as make:
        client = visit("operator", make("reader"), operator_url=make("operator"))
        assert _dead(stream) == {1, 2, 3, 4, 5, 6}
        # This page and all that match are told apart, and the filter survives.
        page = _post(
            client,
            "/do/dead",
            what="requeue",
            place=["workers|orders/0/1", "workers|orders/0/2", "workers|orders/0/70"],
        )
        assert "Requeue dead letters</strong>: 2 changed" in page and 'value="shop.charge"' in page
        assert _dead(stream) == {3, 4, 5, 6} and _last(stream) == ("ann", "requeue dead letters", "orders/workers", 2)
        _post(client, "/do/dead", what="delete", place="workers|orders/0/3")
        assert _dead(stream) == {4, 5, 6}
        for confirm in ("", "delete", "requeue all"):
            refused = client.post("/do/dead/all", data={"what": "delete", "confirm": confirm, "error": "TimeoutError"})
            assert refused.status_code == 400 and "nothing was changed" in refused.text
        assert _dead(stream) == {4, 5, 6}
        page = _post(client, "/do/dead/all", what="delete", confirm="delete all", error="TimeoutError")
        assert _dead(stream) == {5, 6} and "1 changed" in page

        places = [f"workers|orders/0/{offset}" for offset in (10, 11)]
        due = "SELECT COUNT(*) FROM ems_retry WHERE `offset` IN (10, 11) AND due_at <= NOW(6)"
        assert stream.value(due) == 0
        _post(client, "/do/retries", place=places)
        assert stream.value(due) == 2 and _last(stream)[1:] == ("retry now", "orders/workers", 2)

        waiting = stream.rows("SELECT LOWER(HEX(uid)) FROM ems_outbox ORDER BY due_at DESC LIMIT 1")[0][0]
        _post(client, "/do/cancel", topic="mails", id=waiting)
        assert (
            stream.value("SELECT COUNT(*) FROM ems_outbox WHERE uid = UNHEX(%s)", waiting) == 0
            and _last(stream)[3] == 1
        )
        assert re.search(r"It was cancelled .* by ann", client.get(f"/trace?id={waiting}").text, re.DOTALL)
        told = visit("reader").get(f"/trace?id={waiting}").text
        assert "It was cancelled" in told and "by ann" not in told

        _post(client, "/do/schedule", name="shop.tidy", what="run")
        assert stream.value("SELECT COUNT(*) FROM ems_outbox WHERE producer_id = 'beat'") == 1

        _check_schedules(client, stream)

        page = _post(client, "/do/silence", rule="backlog", reason="moving house", back="/alarms", **{"for": "2h"})
        assert "moving house" in page and "1 changed" in page
        silence = stream.value("SELECT silence_id FROM ems_alarm_silence")
        assert "moving house" not in _post(client, "/do/unsilence", silence=silence, back="/alarms")

        for what, paused in (("pause", 1), ("resume", 0)):
            _post(client, "/do/pause", topic="orders", group="workers", what=what)
            assert stream.value("SELECT paused FROM ems_group WHERE name = 'workers'") == paused
        _post(client, "/do/limit", topic="orders", group="workers", rate="100/s", max_running="7")
        assert Admin(stream.app()).limits.get("orders", "workers").max_running == 7
        _post(client, "/do/limit", topic="orders", group="workers")
        assert Admin(stream.app()).limits.get("orders", "workers").rate is None

        _check_tasks(client, stream)

        assert stream.value("SELECT COUNT(DISTINCT action_id) FROM ems_audit") == 19
        assert client.get("/audit?after=1").status_code == 400
        listed = client.get("/audit").text
        assert "limit group" in listed and "orders/workers" in listed


def _check_tasks(client: TestClient, stream: Stream) -> None:
    group = stream.value("SELECT id FROM ems_group WHERE name = 'workers'")
    stream.rows("INSERT INTO ems_handler (group_id, name, on_error) VALUES (%s, 'shop.ship', 'retry')", group)
    place = {"topic": "orders", "group": "workers", "task": "shop.ship"}
    for what, shown in (("pause", "Resume shop.ship"), ("resume", "Pause shop.ship")):
        page = _post(client, "/do/task", back="/tasks?topic=orders&q=shop.ship", what=what, **place)
        assert shown in page and '<option value="shop.charge">' in page and "EMS_TASK_FIGURES_S" in page
    assert _last(stream)[1:3] == ("resume task", "orders/workers/shop.ship")
    assert client.post("/do/task", data=place | {"what": "pause", "task": "no.such"}).status_code == 404


def _check_schedules(client: TestClient, stream: Stream) -> None:
    group = stream.value("SELECT id FROM ems_group WHERE name = 'senders'")
    stream.rows("INSERT INTO ems_handler (group_id, name, on_error) VALUES (%s, 'shop.remind', 'retry')", group)
    added = {"name": "a-customer", "task": "shop.remind", "cron": "0 9 * * *", "timezone": "Asia/Tokyo", "args": "[17]"}
    page = _post(client, "/do/schedule/add", back="/schedules", tag="c17", **added)
    assert "a-customer" in page and "Asia/Tokyo" in page and "Add schedule</strong>: 1 changed" in page
    page = _post(client, "/do/schedule/change", back="/schedules", name="a-customer", every="2h")
    assert "every 7200.0" in page
    for what, shown in (("pause", "Resume a-customer"), ("resume", "Pause a-customer")):
        assert shown in _post(client, "/do/schedule", back="/schedules?tag=c17", name="a-customer", what=what)
    assert stream.value("SELECT body FROM ems_schedule WHERE name = 'a-customer'") == b"[[17],{}]"
    page = _post(client, "/do/schedule", back="/schedules", name="a-customer", what="delete")
    assert "Delete schedule</strong>: 1 changed" in page and "Pause a-customer" not in page
    assert _last(stream) == ("ann", "delete schedule", "a-customer", 1)
    assert stream.rows("SELECT origin FROM ems_schedule WHERE name = 'shop.tidy'") == [("code",)]


def test_a_group_is_moved_as_it_was_planned(stream: Stream, visit: Visiting) -> None:
    client, at = visit("operator"), "/groups/orders/audit"

    def cursors() -> list[int]:
        return [int(row[0]) for row in stream.rows(
            "SELECT c.next_offset FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id WHERE g.name = 'audit' ORDER BY c.`partition`"
        )]  # fmt: skip

    before = cursors()
    assert "4 messages to skip" in client.get(f"{at}/reset?plan=1&to=5&partition=0").text and cursors() == before
    for confirm in ("", "Audit", "workers"):
        refused = client.post(f"/do{at}", data={"kind": "reset", "to": "5", "partition": "0", "confirm": confirm})
        assert refused.status_code == 400 and cursors() == before
    page = _post(client, f"/do{at}", kind="reset", to="5", partition="0", confirm="audit", back=at)
    assert cursors() == [5, *before[1:]] and "Reset group</strong>: 4 changed" in page
    skipped = client.get(f"{at}/skip?plan=1&keep=2").text
    assert "messages to skip" in skipped
    _post(client, f"/do{at}", kind="skip", keep="2", confirm="audit", back=at)
    ends = [int(row[0]) for row in stream.rows(
        "SELECT MAX(`offset`) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = 'orders' GROUP BY m.`partition` ORDER BY m.`partition`"
    )]  # fmt: skip
    assert cursors() == [end - 1 for end in ends]
    assert "3 messages to run again" in client.get(f"{at}/replay?plan=1&from=1&to=3&partition=0").text
    _post(client, f"/do{at}", kind="replay", **{"from": "1", "to": "3"}, partition="0", confirm="audit", back=at)
    found = stream.rows(
        "SELECT action, SUM(changed) FROM ems_audit GROUP BY action_id, action ORDER BY action_id DESC LIMIT 3"
    )
    assert found[0] == ("replay", 3) and found[1][0] == "skip group" and found[2] == ("reset group", 4)


def test_a_long_change_stops_between_two_of_its_transactions(
    stream: Stream, visit: Visiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = stream.value("SELECT id FROM ems_group WHERE name = 'senders'")
    stream.rows(
        "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, "
        "task, error_type, reason, error) SELECT %s, 0, n, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', NOW(6), 'p', NOW(6), 3, "
        f"'t', 'E', 'no', 'no' FROM {SEQUENCE} WHERE n <= 1200",
        group,
    )
    monkeypatch.setattr("emsworker.web.actions._PATIENCE_S", -1.0)
    page = _post(
        visit("operator"),
        "/do/dead/all",
        what="delete",
        confirm="delete all",
        group="senders",
        back="/dead?group=senders",
    )
    assert "500 changed" in page and "All 700 that match" in page
    stream.rows("DELETE FROM ems_dead WHERE group_id = %s", group)


def test_no_change_without_its_row_and_no_row_without_its_change(stream: Stream, visit: Visiting) -> None:
    client, rows = visit("operator"), "SELECT COUNT(*) FROM ems_audit"
    before, dead = stream.value(rows), _dead(stream)
    stream.rows("RENAME TABLE ems_audit TO ems_audit_away")
    try:
        refused = client.post("/do/dead", data={"what": "delete", "place": "workers|orders/0/5"})
        assert refused.status_code == 503 and _dead(stream) == dead
    finally:
        stream.rows("RENAME TABLE ems_audit_away TO ems_audit")
    missing = {"topic": "orders", "id": "01a2045d-8c72-7ed0-8791-596227901627"}
    assert client.post("/do/cancel", data=missing).status_code == 404 and stream.value(rows) == before
    for path, fields in (
        ("/do/dead", {"what": "burn", "place": "workers|orders/0/5"}), ("/do/dead", {"what": "delete"}), ("/do/dead", {"what": "delete", "place": "x"}),
        ("/do/pause", {"topic": "orders"}), ("/do/limit", {"topic": "orders", "group": "workers", "rate": "fast"}),
        ("/do/limit", {"topic": "orders", "group": "workers", "max_running": "x"}), ("/do/groups/orders/workers", {"kind": "burn"}),
        ("/do/schedule", {"name": "shop.tidy"}), ("/do/schedule", {"name": "shop.tidy", "what": "delete"}),
        ("/do/schedule/add", {"name": "s", "task": "no.such", "every": "1h"}), ("/do/schedule/change", {"name": "shop.tidy", "every": "1h"}),
    ):  # fmt: skip
        assert client.post(path, data=fields).status_code == 400, (path, fields)
    for path, fields in (
        ("/do/pause", {"topic": "gone", "group": "x", "what": "pause"}),
        ("/do/schedule", {"name": "gone", "what": "run"}),
    ):
        assert client.post(path, data=fields).status_code == 404, (path, fields)
    assert _dead(stream) == dead


@pytest.mark.parametrize(
    "back", ["https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", ""]
)
def test_the_way_back_leads_nowhere_else(stream: Stream, visit: Visiting, back: str) -> None:
    found = visit("operator").post(
        "/do/pause", data={"topic": "mails", "group": "senders", "what": "resume", "back": back}
    )
    assert found.headers["location"].startswith("/?did=")


def test_two_people_act_on_the_same_row(stream: Stream, visit: Visiting) -> None:
    """The loser's end state: one of them has changed it, the other nothing, and both are told so."""
    client, place = visit("operator"), {"what": "requeue", "place": "workers|orders/0/6", "back": "/dead"}
    pages: list[str] = []

    def act() -> None:
        answer = client.post("/do/dead", data=place)
        pages.append(client.get(answer.headers["location"]).text)

    with connect(stream.url) as other, other.cursor() as cursor:
        cursor.execute("SELECT 1 FROM ems_dead WHERE `offset` = 6 FOR UPDATE")
        threads = [threading.Thread(target=act) for _ in range(2)]
        for thread in threads:
            thread.start()
        other.rollback()
        for thread in threads:
            thread.join(60)
    assert 6 not in _dead(stream)
    assert sorted("1 changed" in page for page in pages) == [False, True]
    assert stream.value("SELECT COUNT(*) FROM ems_retry WHERE `offset` = 6") == 1


def test_a_viewer_of_the_database_changes_nothing(stream: Stream, visit: Visiting, server: LocalDatabase) -> None:
    """An operator by level whose database user may not is refused by the server, in words."""
    with users(server, stream.url) as make:
        client = visit("operator", operator_url=make("viewer"))
        refused = client.post("/do/dead", data={"what": "delete", "place": "workers|orders/0/5"})
        assert refused.status_code == 403 and "this user lacks" in refused.text and 5 in _dead(stream)
        page = client.get("/groups/orders/workers").text
        assert "Nothing can be changed" in page and "/do/pause" not in page and ":pw@" not in page


@pytest.mark.slow
def test_changes_go_to_the_stream_that_is_read(
    stream: Stream, visit: Visiting, server: LocalDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another stream has a group of the same name; nobody pauses it by this dashboard, and `ems web` does not begin."""
    with recycled_database(server) as url, open_stream(url) as other, users(server, stream.url) as make:
        other.group(other.topic("mails"), "senders")
        form = {"topic": "mails", "group": "senders", "what": "pause"}
        wrong = re.sub("//.*@", "//nobody:s3cret@", stream.url)
        for operator_url, words in (
            (url, "is not the stream of"),
            (make("viewer"), "this user lacks"),
            (wrong, "check its user, password"),
        ):
            client = visit("operator", operator_url=operator_url)
            assert "Nothing can be changed" in client.get("/").text
            refused = client.post("/do/pause", data=form)
            assert refused.status_code == 403 and words in refused.text, refused.text
            monkeypatch.setenv("EMS_WEB_OPERATOR_URL", operator_url)
            ended = CliRunner().invoke(ems, ["web", "--url", stream.url, "--port", "0"])
            assert ended.exit_code == 2 and words in ended.output and "EMS_WEB_OPERATOR_URL" in ended.output
            assert "s3cret" not in ended.output + refused.text and ":pw@" not in ended.output
        assert other.value("SELECT paused FROM ems_group") == 0
        # A server that is away cannot tell: the pages are served, and an action asks again before it changes anything.
        away = re.sub("@[^/]*/", "@127.0.0.1:9/", re.sub(r"[?].*", "", url))
        client = visit("operator", operator_url=away)
        assert client.get("/topics").status_code == 200 and client.post("/do/pause", data=form).status_code == 503
        monkeypatch.setenv("EMS_WEB_OPERATOR_URL", away)
        monkeypatch.setattr("emsworker.web.serve.serve", lambda *_: None)
        begun = CliRunner().invoke(ems, ["web", "--url", stream.url, "--port", "0"])
        assert begun.exit_code == 0 and "is checked before the first change" in begun.output
