"""The effect of a transactional handler happens exactly once, whatever dies."""

import random
import signal
import time
from collections import Counter

import pytest

from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.servers import connect, kill_connection
from tests.support.waiting import until
from tests.support.worker import kill


def _effects(stream: Stream) -> Counter[int]:
    return Counter(row[0] for row in stream.rows("SELECT n FROM effect"))


@pytest.mark.chaos
@pytest.mark.parametrize("topic", ["tx", "tx_batch"])
def test_kill_9_at_random_moments(stream: Stream, topic: str) -> None:
    chance = random.Random(topic)
    total = 3000
    stream.send(topic, [{"n": n, "do": "fail", "until": 1} if n % 97 == 0 else {"n": n} for n in range(total)])
    worker = stream.worker(topics=[topic], processes=2, threads=2)
    kills = 0
    deadline = time.monotonic() + 30
    while len(_effects(stream)) < total and kills < 5 and time.monotonic() < deadline:
        children = until(worker.children, 10, "there are children")
        kill(chance.choice(children), signal.SIGKILL)
        kills += 1
        pause = time.monotonic() + chance.uniform(0.2, 0.8)
        until(lambda pause=pause: time.monotonic() > pause, 2, "a random moment")
    stream.wait_settled(30)
    assert _effects(stream) == {n: 1 for n in range(total)}
    assert kills >= 2
    assert worker.stop() == 0


def test_a_handler_that_commits_is_a_dead_letter_with_the_reason(stream: Stream) -> None:
    stream.send("tx", [{"n": 1, "do": "commit"}, {"n": 2}])
    worker = stream.worker(topics=["tx"])
    until(lambda: stream.rows("SELECT * FROM ems_dead"), 10, "dead")
    stream.wait_settled()
    ((attempts, reason),) = stream.rows("SELECT attempts, reason FROM ems_dead")
    assert attempts == 1 and "ended its transaction" in reason
    assert worker.stop() == 0


def test_a_handler_that_does_not_mind_its_lost_connection_is_run_again_at_no_charge(stream: Stream) -> None:
    stream.send("tx", [{"n": 1}, {"n": 2, "do": "lose"}, {"n": 3}])
    worker = stream.worker(topics=["tx"])
    until(lambda: len(_effects(stream)) == 3, 20, "all have run")
    stream.wait_settled()
    assert _effects(stream) == {1: 1, 2: 1, 3: 1}
    assert stream.rows("SELECT * FROM ems_attempt") == [] == stream.rows("SELECT * FROM ems_dead")
    assert worker.stop() == 0


def test_deadlocks_between_handlers_are_run_again_at_no_charge(stream: Stream) -> None:
    rows = list(range(1, 9))
    stream.run("INSERT INTO account VALUES " + ",".join(f"({row}, 0)" for row in rows))
    stream.send("collide", [{"n": n, "rows": rows if n % 2 else rows[::-1]} for n in range(60)])
    worker = stream.worker(topics=["collide"], threads=4)
    until(lambda: stream.one("SELECT SUM(amount) FROM account") == 60 * 8, 30, "all done")
    stream.wait_settled()
    assert set(stream.rows("SELECT amount FROM account")) == {(60,)}
    assert len(stream.record.events("try")) > 60, "there were deadlocks"
    assert not (attempts := stream.rows("SELECT * FROM ems_attempt")), str(attempts)[:3000]
    assert worker.stop() == 0


def test_a_soft_limit_never_arrives_in_a_commit(one_stream: Stream) -> None:
    """Handlers that take just as long as their limit: each effect once, however it ended."""
    stream = one_stream
    total = 150
    stream.send("tx_soft", [{"n": n, "s": 0.016 + n % 10 / 1000} for n in range(total)])
    worker = stream.worker(topics=["tx_soft"], threads=4, settings={"ack_interval_s": 0.01})
    until(lambda: len(_effects(stream)) > total // 3, 20, "some are through")
    worker.stop()
    done = _effects(stream)
    assert set(done.values()) == {1}
    assert "Packet sequence" not in worker.text()


def test_a_hook_that_fails_after_the_commit_changes_nothing(one_stream: Stream) -> None:
    stream = one_stream
    stream.send("hooks", [{"n": n} for n in range(5)])
    worker = stream.worker(topics=["hooks"])
    until(lambda: len(_effects(stream)) == 5, 10, "done")
    stream.wait_settled()
    assert _effects(stream) == {n: 1 for n in range(5)}
    assert not (attempts := stream.rows("SELECT * FROM ems_attempt")), str(attempts)[:3000]
    assert worker.stop() == 0


@pytest.mark.chaos
def test_connections_killed_at_random(stream: Stream) -> None:
    """A lost acknowledgement is at most a duplicate, and never one of a transactional effect."""
    total = 1500
    chance = random.Random(7)
    worker = stream.worker(topics=["tx_batch", "acts"], groups=["tx_batch", "a"], processes=2, threads=3)
    children = worker.children()
    stream.send("tx_batch", [{"n": n} for n in range(total)])
    stream.send("acts", [{"n": n, "do": "sleep", "s": 0.001} for n in range(total)])
    deadline = time.monotonic() + 4
    killed = 0
    with connect(stream.server.admin_url, autocommit=True) as admin, admin.cursor() as cursor:
        while time.monotonic() < deadline:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()",
                (stream.url.rsplit("/", 1)[1],),
            )
            ids = [row[0] for row in cursor.fetchall()]
            for number in chance.sample(ids, min(2, len(ids))):
                killed += kill_connection(cursor, number)
            pause = time.monotonic() + 0.03
            until(lambda pause=pause: time.monotonic() > pause, 2, "a moment")
    until(lambda: len(_effects(stream)) == total, 30, f"all effects; log:\n{stream.logs()}")
    stream.wait_ended(range(total), 30, group="a")
    stream.wait_settled(30)
    assert killed > 20
    assert _effects(stream) == {n: 1 for n in range(total)}
    assert stream.rows("SELECT * FROM ems_dead") == []
    assert set(stream.rows("SELECT DISTINCT outcome FROM ems_attempt")) <= {("failed",), ("done",)}
    assert worker.children() == children, "no process was lost"
    assert worker.stop() == 0


@pytest.mark.chaos
def test_mysql_killed_and_started_again_under_a_running_worker(stream: Stream) -> None:
    total = 2000
    worker = stream.worker(topics=["tx_batch", "acts"], groups=["tx_batch", "a"], processes=2, threads=2)
    stream.send("tx_batch", [{"n": n, "do": "sleep", "s": 0.002} for n in range(total)])
    stream.send("acts", [{"n": n, "do": "sleep", "s": 0.002} for n in range(total)])
    until(lambda: len(_effects(stream)) > 100, 10, "it runs")
    stream.server.kill()
    stream.server.start(60)
    back = machine_s()
    seen = len(stream.record.events("end"))
    until(lambda: len(stream.record.events("end")) > seen + 200, 20, f"it goes on; log:\n{stream.logs()}")
    assert machine_s() - back < 10
    until(lambda: len(_effects(stream)) == total, 40, f"all effects; log:\n{stream.logs()}")
    stream.wait_ended(range(total), 30, group="a")
    stream.wait_settled(30)
    assert _effects(stream) == {n: 1 for n in range(total)}
    assert worker.stop() == 0
    assert stream.rows("SELECT * FROM ems_client") == []
