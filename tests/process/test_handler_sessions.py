"""P2: a handler can do nothing to its session that spoils its ack, its neighbours or the worker."""

import re
from collections import Counter

import pytest

from tests.process.stream import Stream
from tests.support.waiting import until

APP = "tests.process.apps.misbehaving:app"
PROCEDURE = """CREATE PROCEDURE swallow_deadlock(n INT, first INT, second INT) BEGIN
  DECLARE CONTINUE HANDLER FOR 1213 BEGIN END;
  INSERT INTO effect (n, pid) VALUES (n, 0);
  UPDATE account SET amount = amount + 1 WHERE id = first;
  DO SLEEP(0.1);
  UPDATE account SET amount = amount + 1 WHERE id = second;
  INSERT INTO cash (uid) VALUES (n);
END"""


def _effects(stream: Stream) -> Counter[int]:
    return Counter(row[0] for row in stream.rows("SELECT n FROM effect"))


@pytest.mark.parametrize("what", [{"more": False}, {"more": True}, {"more": False, "raises": True}])
def test_a_deadlock_that_the_handler_swallows_loses_nothing(stream: Stream, what: dict[str, bool]) -> None:
    total = 40
    stream.run("INSERT INTO account VALUES (1, 0), (2, 0)")
    stream.send("swallow", [{"n": n, **what} for n in range(total)])
    worker = stream.worker(APP, topics=["swallow"], threads=2)
    dead = "SELECT reason FROM ems_dead"
    until(lambda: len(_effects(stream)) == total or stream.rows(dead), 60, f"all effects; log:\n{stream.logs()}")
    assert stream.rows(dead) == []
    stream.wait_settled()
    assert stream.record.events("caught", code=1213), "there were deadlocks"
    assert _effects(stream) == {n: 1 for n in range(total)}
    assert stream.one("SELECT COUNT(*) FROM cash") == total * what["more"]
    assert set(stream.rows("SELECT amount FROM account")) == {(total,)}
    assert stream.rows("SELECT * FROM ems_attempt") == [] == stream.rows("SELECT * FROM ems_dead"), "nobody was charged"
    assert worker.stop() == 0


def test_a_deadlock_that_a_procedure_swallows_has_no_half_effect(stream: Stream) -> None:
    """The server hides it from the client: the message fails with the reason, and nothing of it was kept."""
    total = 20
    stream.run("INSERT INTO account VALUES (1, 0), (2, 0)")
    stream.run(PROCEDURE)
    stream.send("hidden", [{"n": n} for n in range(total)])
    worker = stream.worker(APP, topics=["hidden"], threads=2)
    until(lambda: len(_effects(stream)) + stream.one("SELECT COUNT(*) FROM ems_dead") == total, 60, "all have ended")
    stream.wait_settled()
    done, dead = _effects(stream), stream.rows("SELECT reason FROM ems_dead")
    assert dead and all("ended its transaction" in reason for (reason,) in dead), "there were deadlocks"
    assert set(done.values()) == {1}
    assert stream.one("SELECT COUNT(*) FROM cash") == len(done), "no half of one"
    assert stream.rows("SELECT amount FROM account") == [(len(done),)] * 2
    assert worker.stop() == 0


CHANGES = {
    "time zone": ["SET time_zone = '-08:00'"],
    "sql_mode": ["SET sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'"],
    "isolation": ["SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"],
    "read only": ["SET SESSION TRANSACTION READ ONLY"],
    "limits": ["SET sql_select_limit = 1", "SET sql_safe_updates = 1", "SET innodb_lock_wait_timeout = 1"],
    "names": ["SET NAMES latin1"],
    "characters": ["SET character_set_results = ucs2", "SET character_set_connection = ucs2"],
    "clock ahead": ["SET timestamp = 2000000000"],
    "clock behind": ["SET timestamp = 1"],
    "completion": ["SET completion_type = 'CHAIN'"],
    "timeouts": ["SET wait_timeout = 1", "SET net_read_timeout = 1"],
    "variables": ["SET @ems_may = 0, @ems_lo = 7, @ems_hi = 9, @ems_one = 3"],
}


@pytest.mark.parametrize("fails", [False, True], ids=["succeeds", "fails"])
def test_what_a_handler_changes_ends_with_it(stream: Stream, fails: bool) -> None:
    """Retries come in time, the thread goes on, and neighbours find the session as it should be."""
    stream.run("CREATE TABLE elsewhere (id INT)")
    other = stream.url.rsplit("/", 1)[1]
    bodies = [{"set": statements, "fails": fails} for statements in CHANGES.values()]
    bodies += [{"set": ["USE information_schema"], "fails": fails}]
    bodies += [{"set": ["/* to look */ USE information_schema"], "fails": fails}]
    bodies += [{"select_db": "information_schema", "fails": fails}, {"own_names": True, "fails": fails}]
    bodies = [{"n": n, **body} for n, body in enumerate(bodies)]
    stream.send("session", bodies)
    stream.send("plain", [{"n": 1000 + n} for n in range(5)])
    worker = stream.worker(APP, topics=["session", "plain"])
    numbers = {body["n"] for body in bodies} | {1000 + n for n in range(5)}
    until(lambda: set(_effects(stream)) == numbers, 30, f"all effects; log:\n{stream.logs()}")
    stream.wait_settled(20)
    assert _effects(stream) == dict.fromkeys(numbers, 1)
    assert stream.rows("SELECT * FROM ems_dead") == []
    errors = stream.rows("SELECT error FROM ems_attempt WHERE outcome = 'failed'")
    assert len(errors) == fails * len(bodies)
    assert all("it's a \\ failure with 'quotes' and \\' both — and more" in error for (error,) in errors)
    stream.send("plain", [{"n": 2000}])
    until(lambda: 2000 in _effects(stream), 20, f"the thread takes more; log:\n{stream.logs()}")
    mode = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION"
    wanted = [other, "+00:00", mode, str(2**64 - 1), "0"]
    assert {tuple(event["session"]) for event in stream.record.events("seen")} == {tuple(wanted)}
    assert worker.stop() == 0


@pytest.mark.parametrize(
    "deed",
    ["COMMIT", "ROLLBACK", "CREATE TABLE made (id INT)", "LOCK TABLES effect WRITE, cash WRITE", "autocommit"],
)
def test_a_handler_that_ends_its_transaction_is_told_so_and_what_follows_is_not_kept(stream: Stream, deed: str) -> None:
    stream.send("end", [{"n": 1, "do": deed}])
    stream.send("plain", [{"n": 2}])
    worker = stream.worker(APP, topics=["end", "plain"])
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 10, "dead")
    stream.wait_settled()
    ((attempts, reason),) = stream.rows("SELECT attempts, reason FROM ems_dead")
    assert attempts == 1 and "ended its transaction" in reason
    if deed != "autocommit":  # who asks for commits of single statements gets them
        assert stream.rows("SELECT * FROM cash") == []
    assert _effects(stream)[2] == 1
    assert worker.stop() == 0


def test_a_connection_that_the_handler_opens_anew_is_no_way_out_of_its_transaction(stream: Stream) -> None:
    stream.send("end", [{"n": 1, "do": "reconnect"}])
    worker = stream.worker(APP, topics=["end"])
    until(lambda: re.search("lost", worker.text()), 10, "it says so")
    assert worker.stop() == 0
    assert stream.rows("SELECT * FROM cash") == [] == stream.rows("SELECT * FROM effect")
