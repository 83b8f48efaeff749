"""Lag, traces and dead letters, each compared with a recount in plain SQL after real work with failures."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from emsworker import Ems as App
from emsworker.admin import Admin
from emsworker.admin.audit import Audit
from emsworker.admin.monitoring import Monitoring
from emsworker.beat.samples import TakeSamples
from emsworker.core.config import Settings
from emsworker.publish.outgoing import Outgoing
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import ServerFacts, unsupported
from tests.cli.test_commands import execute, rows
from tests.support import rows as writing
from tests.support.commands import Ems, wait_for

TASKS = """
    from emsworker import Ems, Ignore, Reject, Retry

    app = Ems("shop")

    @app.subscribe("orders", "mail", batch=0)
    def mail(message):
        number = message.body
        if number % 10 == 3:
            raise Reject(f"number {number}")
        if number % 10 == 4:
            raise Retry("later", countdown=3600)
        if number % 10 == 5 and message.attempt == 1:
            raise ValueError("once")
        if number % 10 == 6:
            raise Ignore

    @app.subscribe("orders", "stats")
    def stats(message):
        pass
"""

COUNT = 200


@pytest.fixture
def worked(ems: Ems, app: App) -> Iterator[Ems]:
    """A stream of 200 messages in 2 partitions, worked through with rejects, retries and ignored ones."""
    ems.write("shop.py", TASKS)
    ems.ok("topics", "create", "orders", "--partitions", "2")
    ems.ok("groups", "create", "orders", "mail", "--ladder", "10ms")
    ems.ok("groups", "create", "orders", "idle")
    app.send_many("orders", [Outgoing("orders", number, key=str(number)) for number in range(COUNT)])
    with ems.running("worker", "-A", "shop", "-p", "1", "-t", "2") as worker:
        worker.wait_ready()

        def settled() -> bool:
            lag = {one.group.name: one for one in Monitoring(app).lag()}
            return (lag["mail"].lag, lag["stats"].lag) == (COUNT // 10, 0)

        wait_for(settled, worker.tell)
        assert worker.stop() == 0
    yield ems


def recount(url: str) -> dict[tuple[str, int], tuple[int, ...]]:
    found = rows(
        url,
        """SELECT g.name, c.`partition`,
          (SELECT COUNT(*) FROM ems_message m
           WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition` AND m.`offset` >= c.next_offset),
          (SELECT COALESCE(SUM(l.hi - l.acked_to), 0) FROM ems_claim l
           WHERE l.group_id = g.id AND l.`partition` = c.`partition` AND l.state <> 'done' AND l.source = 'stream'),
          (SELECT COUNT(*) FROM ems_retry r WHERE r.group_id = g.id AND r.`partition` = c.`partition`),
          (SELECT COUNT(*) FROM ems_dead d WHERE d.group_id = g.id AND d.`partition` = c.`partition`)
        FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id""",
    )
    return {(str(row[0]), int(str(row[1]))): tuple(int(str(value)) for value in row[2:]) for row in found}


def test_lag_equals_a_recount(worked: Ems, url: str) -> None:
    # A live and a waiting claim, as crashed workers leave them.
    idle = "FROM ems_group WHERE name = 'idle'"
    ((number,),) = rows(url, f"SELECT id {idle}")
    writing.add_claim(partial(rows, url), number, 1, 20, claim_id=7, acked_to=4)
    writing.add_claim(partial(rows, url), number, 21, 30, claim_id=8, state="waiting")
    execute(url, f"UPDATE ems_cursor SET next_offset = 31 WHERE `partition` = 0 AND group_id = {number}")
    listed = worked.ok("groups", "list", "--json").json
    told = {
        (one["group"], part["partition"]): (
            part["unclaimed"],
            part["claimed"] + part["waiting"],
            part["retries"],
            part["dead"],
        )
        for one in listed
        for part in one["partitions"]
    }
    assert told == recount(url)
    by_name = {one["group"]: one for one in listed}
    assert (by_name["idle"]["claimed"], by_name["idle"]["waiting"], by_name["idle"]["lag"]) == (0, 26, COUNT - 4)
    assert (by_name["mail"]["retries"], by_name["mail"]["dead"]) == (COUNT // 10, COUNT // 10)
    assert by_name["stats"]["oldest_s"] is None
    ages = rows(
        url,
        "SELECT MAX(TIMESTAMPDIFF(MICROSECOND, m.born_at, NOW(6)) / 1000000) FROM ems_retry r JOIN ems_message m "
        "ON m.`partition` = r.`partition` AND m.`offset` = r.`offset`",
    )
    later = float(str(ages[0][0]))
    assert 0 <= later - by_name["mail"]["oldest_s"] < 30


def test_topics_are_ranked_by_length(worked: Ems, url: str, app: App) -> None:
    app.send_many("small", ["x" * 100] * 5)
    listed = worked.ok("topics", "list", "--json").json
    assert [(one["topic"], one["messages"]) for one in listed] == [("orders", COUNT), ("small", 5)]
    real = {
        str(name): int(str(size))
        for name, size in rows(url, "SELECT topic_id, SUM(size) FROM ems_message WHERE `offset` > 0 GROUP BY 1")
    }
    assert listed[0]["bytes"] == real["1"] and listed[1]["bytes"] == real["2"]
    execute(url, "UPDATE ems_partition SET log_start = 11 WHERE topic_id = 1 AND `partition` = 0")
    assert worked.ok("topics", "list", "--json").json[0]["messages"] == COUNT - 10


def expected_state(number: int) -> str:
    return {3: "dead", 4: "retry"}.get(number % 10, "done")


def test_traces_equal_a_recount(worked: Ems, url: str, app: App) -> None:
    monitoring = Monitoring(app)
    messages = rows(url, "SELECT `partition`, `offset`, body FROM ems_message WHERE `offset` > 0")
    assert len(messages) == COUNT
    attempts = rows(url, "SELECT `partition`, `offset`, attempt, outcome FROM ems_attempt ORDER BY ended_at, attempt")
    stats = "ems_claim c JOIN ems_group g ON g.id = c.group_id AND g.name = 'stats'"
    owners = rows(
        url,
        "SELECT m.`partition`, m.`offset`, c.client_id FROM ems_message m "
        f"JOIN ({stats}) ON c.`partition` = m.`partition` AND m.`offset` BETWEEN c.lo AND c.hi",
    )
    owner_of = {row[:2]: row[2] for row in owners}
    assert len(owners) == len(owner_of) == COUNT
    for partition, offset, body in messages:
        number = int(bytes(body))  # type: ignore[call-overload]
        trace = monitoring.trace_at("orders", int(str(partition)), int(str(offset)))
        found = {one.group.name: one for one in trace.groups}
        assert found["mail"].state == expected_state(number), number
        assert (found["stats"].state, found["idle"].state) == ("done", "unclaimed")
        assert found["stats"].client_id == owner_of[partition, offset]
        told = [(one.attempt, one.outcome.value) for one in found["mail"].history.attempts]
        assert told == [row[2:] for row in attempts if row[:2] == (partition, offset)]


def test_the_trace_command(worked: Ems, url: str) -> None:
    uid = str(
        rows(
            url,
            "SELECT LOWER(INSERT(INSERT(INSERT(INSERT(HEX(uid),9,0,'-'),14,0,'-'),19,0,'-'),24,0,'-')) "
            "FROM ems_message WHERE body = '5'",
        )[0][0]
    )
    by_id = worked.ok("trace", uid, "--json").json
    assert len(by_id) == 1 and by_id[0]["id"] == uid and by_id[0]["key"] == "5" and by_id[0]["producer"]
    mail = next(group for group in by_id[0]["groups"] if group["group"] == "mail")
    assert mail["state"] == "done"
    assert [(one["attempt"], one["outcome"]) for one in mail["attempts"]] == [(1, "failed"), (2, "done")]
    assert "ValueError: once" in mail["attempts"][0]["error"]
    place = f"orders/{by_id[0]['partition']}/{by_id[0]['offset']}"
    assert worked.ok("trace", place, "--json").json == by_id
    assert worked.ok("trace", place.replace("/", "@").replace("@", "/", 1), "--json").json == by_id, "as in the log"
    assert "unclaimed" in worked.ok("trace", place).out
    bad = [("orders/0/99999", 1), ("orders/9/1", 1), ("nix/0/1", 1), ("orders/x/1", 2), ("abc", 2)]
    for what, code in [*bad, ("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70", 1)]:
        done = worked("trace", what)
        assert (done.code, len(done.errors)) == (code, 1), done


def test_dead_letters_are_shown(worked: Ems, url: str) -> None:
    listed = worked.ok("dead", "list", "--json").json["dead_letters"]
    assert {(one["topic"], one["group"], one["reason"]) for one in listed} == {
        ("orders", "mail", f"number {number}") for number in range(3, COUNT, 10)
    }
    assert {(one["task"], one["error"]) for one in listed} == {(None, "Reject")}
    assert [one["dead_at"] for one in listed] == sorted((one["dead_at"] for one in listed), reverse=True)
    first = worked.ok("dead", "list", "--limit", "8", "--json")
    token = first.json["after"]
    assert f"--after {token} shows" in worked.ok("dead", "list", "--limit", "8").err and first.err == ""
    rest = worked.ok("dead", "list", "--limit", "100", "--after", token, "--json").json
    assert first.json["dead_letters"] + rest["dead_letters"] == listed and rest["after"] is None
    chosen = worked.ok("dead", "list", "--error", "Reject", "--since", "1h", "--task", "", "--json").json
    assert chosen["dead_letters"] == listed
    for nothing in (["--error", "ValueError"], ["--task", "shop.mail"], ["--until", "2026-01-01"]):
        assert worked.ok("dead", "list", *nothing, "--json").json == {"dead_letters": [], "after": None}
    (counted,) = worked.ok("dead", "list", "--by", "group", "--by", "error", "--json").json
    assert (counted["group"], counted["error"], counted["count"], counted["capped"]) == ("mail", "Reject", 20, False)
    assert worked.ok("dead", "list", "--by", "topic", "--by", "topic").out.split()[:5] == [
        "TOPIC",
        "COUNT",
        "LATEST",
        "AT",
        "orders",
    ]
    for wrong in (["--after", "x"], ["--by", "error", "--after", token], ["--since", "soon"], ["--by", "key"]):
        assert worked("dead", "list", *wrong).code == 2, wrong
    shown = worked.ok("dead", "show", listed[0]["id"], "--json").json
    assert len(shown) == 1
    assert f"number {shown[0]['body']}" == shown[0]["reason"] and "Reject" in shown[0]["error"]
    assert [(one["attempt"], one["outcome"]) for one in shown[0]["attempts_made"]] == [(1, "rejected")]
    assert "rejected" in worked.ok("dead", "show", listed[0]["id"]).out
    done = worked("dead", "show", "orders/0/99999")
    assert done.code == 1 and len(done.errors) == 1
    assert worked("dead", "list", "--group", "nix").code == 1
    assert worked("dead", "requeue").code == 2 and worked("dead", "requeue", "--all").code == 2
    assert worked("dead", "requeue", listed[0]["id"], "--error", "Reject").code == 2
    assert worked.ok("dead", "requeue", "--all", "--error", "ValueError", "--yes", "--json").json == {"requeued": 0}


def dead_and_retries(url: str) -> tuple[int, int]:
    found = rows(url, "SELECT (SELECT COUNT(*) FROM ems_dead), (SELECT COUNT(*) FROM ems_retry WHERE attempt = 0)")
    return int(str(found[0][0])), int(str(found[0][1]))


def test_dead_letters_run_again_with_a_fresh_ladder(worked: Ems, url: str) -> None:
    letters = worked.ok("dead", "list", "--json").json["dead_letters"]
    dead = len(letters)
    assert worked.ok("dead", "requeue", letters[0]["id"]).out == "Requeued 1 dead letter.\n"
    assert dead_and_retries(url) == (dead - 1, 1)
    some = "\n".join(f"orders/{one['partition']}/{one['offset']}" for one in letters[1:4])
    worked.ok("dead", "requeue", "-", stdin=some)
    assert dead_and_retries(url) == (dead - 4, 4)
    for verb in ("requeue", "delete"):  # one is not dead, one is no id: the others are changed
        done = worked("dead", verb, letters[0]["id"], "nonsense", letters[4]["id"], "--yes")
        assert done.code == 1 and done.out == ("Requeued 1 dead letter.\n" if verb == "requeue" else "")
        assert [letters[0]["id"] in line or "'nonsense'" in line for line in done.errors[:2]] == [True, True]
        assert dead_and_retries(url) == (dead - 5, 5)
    assert worked.ok("dead", "delete", letters[5]["id"], "--yes", "--json").json == {"deleted": 1}
    assert worked.ok("trace", letters[5]["id"], "--json").json[0]["groups"][1]["state"] == "dropped"
    assert worked.ok("dead", "requeue", "--all", "--yes", "--json").json == {"requeued": dead - 6}
    assert dead_and_retries(url) == (0, dead - 1)
    with worked.running("worker", "-A", "shop", "-p", "1", "-t", "2") as worker:
        worker.wait_ready()
        wait_for(lambda: dead_and_retries(url) == (dead - 1, 0), worker.tell)
        assert worker.stop() == 0
    attempts = rows(url, "SELECT attempt, COUNT(*) FROM ems_attempt WHERE outcome = 'rejected' GROUP BY attempt")
    assert attempts == [(1, 2 * dead - 1)]  # attempt 1 again
    assert worked.ok("dead", "delete", "--all", "--topic", "orders", "--group", "mail", "--yes").code == 0
    assert dead_and_retries(url)[0] == 0


def test_a_requeued_letter_brings_its_message_back(worked: Ems, url: str, app: App) -> None:
    dead = rows(url, "SELECT `partition`, `offset`, body FROM ems_dead ORDER BY `partition`, `offset`")
    place = f"`partition` = {dead[0][0]} AND `offset` = {dead[0][1]}"
    before = rows(url, f"SELECT * FROM ems_message WHERE {place}")
    execute(url, f"DELETE FROM ems_message WHERE {place}")
    admin = Admin(app)
    refs = admin.dead.find(f"orders/{dead[0][0]}/{dead[0][1]}")
    assert admin.dead.requeue(refs) == 1
    assert rows(url, f"SELECT * FROM ems_message WHERE {place}") == before
    assert admin.dead.requeue(refs) == 0  # not dead any more


def test_a_letter_whose_id_is_taken_stays_dead(worked: Ems, url: str, app: App) -> None:
    uid, partition, offset = rows(url, "SELECT HEX(uid), `partition`, `offset` FROM ems_dead LIMIT 1")[0]
    execute(url, f"DELETE FROM ems_message WHERE `partition` = {partition} AND `offset` = {offset}")
    app.send("orders", 1, uid=str(uid))
    admin = Admin(app)
    refs = admin.dead.find(f"orders/{partition}/{offset}")
    count = admin.dead.count()
    assert (admin.dead.requeue(refs), admin.dead.count()) == (0, count)


def facts(version: str) -> ServerFacts:
    values: dict[str, Any] = {name: 0 for name in ServerFacts.__dataclass_fields__}
    return ServerFacts(**values | {"version": version})


@pytest.mark.parametrize(
    ("version", "supported"),
    [
        ("10.6.0-MariaDB", True),
        ("11.4.2-MariaDB-ubu2404", True),
        ("10.5.27-MariaDB", False),
        ("8.0.40", True),
        ("9.7.0", True),
        ("5.7.44-log", False),
        ("8.0.11-TiDB-v8.5.0", False),
        ("nonsense", False),
    ],
)
def test_servers_that_are_not_supported(version: str, supported: bool) -> None:
    assert facts(version).supported is supported
    assert version in unsupported(facts(version)) and "10.6" in unsupported(facts(version))


def test_lists_of_very_many_say_how_old_they_are(ems: Ems, app: App, url: str) -> None:
    app.send("orders", 1)
    ems.ok("groups", "create", "orders", "mail")
    Database(url).call(lambda session: TakeSamples()(session, Settings()))
    execute(url, "UPDATE ems_latest SET length = 5000 WHERE topic_id = 0")  # as if there were so many
    listed = ems("groups", "list", "--json")
    assert "As the beat sampled it" in listed.err
    assert [(one["group"], one["lag"], one["partitions"]) for one in listed.json] == [("mail", 1, None)]
    assert [(one["messages"], one["bytes"]) for one in ems("topics", "list", "--json").json] == [(1, None)]
    rows = [line.split()[:5] for line in ems("top").out.splitlines()][1:]
    assert rows == [["orders", "mail", "no", "consumer", "1"]]
    for now in (("groups", "list", "orders"), ("groups", "list", "--exact"), ("groups", "list", "--partitions")):
        read = ems(*now, "--json")
        assert "sampled" not in read.err and len(read.json) == 1
    (exact,) = ems("topics", "list", "--exact", "--json").json
    assert exact["bytes"] is not None
    (server,) = ems("servers", "list", "--json").json
    assert (server["groups"], server["lag"]) == (1, 1) and server["age_s"] is not None


def test_a_trace_tells_of_messages_outside_of_the_stream_too(ems: Ems, app: App, url: str) -> None:
    ems.ok("topics", "create", "orders", "--partitions", "1")
    ems.ok("groups", "create", "orders", "mail", "--ladder", "10ms")
    later = app.send("orders", 1, key="k", delay="1h")
    (told,) = ems.ok("trace", later.id, "--json").json
    assert (told["kind"], told["topic"], told["key"], told["offset"]) == ("delayed", "orders", "k", None)
    assert told["due_at"] > told["created_at"] and "delayed" in ems.ok("trace", later.id, "--topic", "orders").out
    assert app.cancel(later.id, "orders")
    assert "was cancelled while it was delayed" in ems("trace", later.id).errors[0]
    sent = app.send("orders", 2)
    assert app.cancel(sent.id, "orders")
    (told,) = ems.ok("trace", sent.id, "--json").json
    assert (told["kind"], [one["state"] for one in told["groups"]]) == ("cancelled", ["cancelled"])
    for id_ in (later.id, sent.id):  # as the dashboard does
        with Audit(app.stream.database).record("ann", "cancel message", f"orders {id_}", count=lambda result: 1):
            app.stream.database.call(lambda session: session.transaction(lambda session: 1))
        (told,) = ems.ok("trace", id_, "--json").json
        assert (told["kind"], told["cancelled_by"], told["id"]) == ("cancelled", "ann", id_)
        assert "ann" in ems.ok("trace", id_).out


def test_a_call_of_what_is_no_name_of_a_task_is_refused(ems: Ems) -> None:
    for name in ("a\nb", "x" * 191, "shop charge"):
        done = ems("send", "default", "[]", "--task", name)
        assert done.code == 2 and "is not a valid name" in done.errors[0] and len(done.err) < 600, done
