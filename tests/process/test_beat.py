"""The beat moves when its leader dies; wake-ups; the cost of idling."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.process.stream import Stream
from tests.support.machine import machine_s
from tests.support.waiting import never, until
from tests.support.worker import kill

LEASE_S = 1.5


def _holder_pid(stream: Stream) -> int:
    rows = stream.rows("SELECT holder FROM ems_leader WHERE expires_at > UTC_TIMESTAMP(6)")
    return int(rows[0][0].rsplit("-", 2)[1]) if rows else 0


@pytest.mark.few
def test_the_duty_moves_within_its_lease_when_the_leader_is_killed(stream: Stream) -> None:
    beats = {beat.pid: beat for beat in [stream.beat() for _ in range(3)]}
    for _ in range(2):
        leader = until(lambda: _holder_pid(stream), 10, "one leads")
        kill(leader, signal.SIGKILL)
        killed = machine_s()
        del beats[leader]
        until(lambda: _holder_pid(stream) in beats, 10, "another leads")
        assert machine_s() - killed < LEASE_S + 1
    (last,) = beats.values()
    assert last.stop() == 0
    assert stream.rows("SELECT * FROM ems_leader") == [], "it resigned, so that the next one need not wait"


@pytest.mark.few
def test_a_worker_without_beat_recovers_nothing_and_a_beat_alone_does(one_stream: Stream) -> None:
    stream = one_stream
    first = stream.worker(topics=["acts"], groups=["a"], beat=False)
    second = stream.worker(topics=["acts"], groups=["a"], beat=False)
    stream.send("acts", [{"n": 0, "do": "hang"}])
    until(lambda: stream.record.events("start"), 10, "it runs")
    runner = stream.record.events("start")[0]["pid"]
    hit, other = (first, second) if runner in first.children() else (second, first)
    hit.kill_all()
    until(lambda: not hit.client_ids(), 5, "its lease ran out")
    never(lambda: len(stream.record.events("start")) > 1, 1.0, "run again without a beat")
    assert stream.rows("SELECT * FROM ems_leader") == []
    stream.beat()
    until(lambda: len(stream.record.events("start")) > 1, 5, "the beat recovered it")
    other.send(signal.SIGQUIT)
    assert other.wait() == 0


# -- wake-ups ----------------------------------------------------------------------------------------------------------


def _latencies(stream: Stream, rounds: int) -> list[float]:
    found = []
    for n in range(rounds):
        pause = time.monotonic() + 0.4  # long enough for the poller to have backed off
        until(lambda pause=pause: time.monotonic() > pause, 2, "idle")
        sent = machine_s()
        stream.send("acts", [{"n": n}])
        stream.wait_ended([n])
        found.append(machine_s(stream.record.events("start", n=n)[0]["at"]) - sent)
    return sorted(found)


@pytest.mark.alone
def test_redis_wakes_an_idle_worker(one_stream: Stream, redis_url: str) -> None:
    from emsworker import Ems

    one_stream.worker(topics=["acts"], groups=["a"], settings={"redis_url": redis_url, "poll_max_s": 5})
    one_stream.app = Ems("sender", url=one_stream.url, redis_url=redis_url)
    one_stream.send("acts", [{"n": 99}])
    one_stream.wait_ended([99])
    latencies = _latencies(one_stream, 8)
    print(f"redis wake-up: median {latencies[4] * 1000:.0f} ms, worst {latencies[-1] * 1000:.0f} ms")
    assert latencies[4] < 0.1 and latencies[-1] < 1, latencies


@pytest.mark.alone
def test_without_redis_polling_is_never_slower_than_its_longest_pause(one_stream: Stream) -> None:
    one_stream.worker(topics=["acts"], groups=["a"])
    one_stream.send("acts", [{"n": 99}])
    one_stream.wait_ended([99])
    latencies = _latencies(one_stream, 8)
    print(f"polling: median {latencies[4] * 1000:.0f} ms, worst {latencies[-1] * 1000:.0f} ms")
    assert latencies[-1] < 0.2 + 0.3, latencies


@pytest.mark.few
def test_a_publish_of_the_worker_itself_wakes_it(one_stream: Stream) -> None:
    """A handler sends the next message of a chain; the poller's pause is far longer than the whole chain may take."""
    stream = one_stream
    stream.worker("tests.process.apps.chain:app", settings={"poll_min_s": 3, "poll_max_s": 3}, threads=2)
    stream.send("chain", [{"n": 0, "until": 5}])
    stream.wait_ended([5], 20)
    at = [machine_s(stream.record.events("end", n=n)[0]["at"]) for n in (0, 5)]
    print(f"in-process wake-up: {(at[1] - at[0]) / 5 * 1000:.0f} ms a link")
    assert at[1] - at[0] < 2


@pytest.mark.alone
def test_idling_is_cheap(one_stream: Stream) -> None:
    stream = one_stream
    worker = stream.worker(topics=["acts"], threads=4, settings={"beat_s": 1})
    (child,) = worker.children()
    ready = time.monotonic()
    until(lambda: time.monotonic() - ready > 6, 10, "nothing has come for a while")
    begun, queries, cpu = time.monotonic(), _queries(stream), _cpu_s(child) + _cpu_s(worker.pid)
    until(lambda: time.monotonic() - begun > 10, 20, "a while, in which services that pause for long have a turn")
    spent_s = time.monotonic() - begun
    rate = (_queries(stream) - queries) / spent_s
    load = (_cpu_s(child) + _cpu_s(worker.pid) - cpu) / spent_s
    print(f"idle worker, 3 groups, 4 threads: {rate:.1f} statements/s, {load * 100:.1f}% of a processor")
    assert rate < 12, "about nine: three looks a second, and what the beat does every few"
    assert load < 0.1


def _queries(stream: Stream) -> int:
    return int(stream.rows("SHOW GLOBAL STATUS LIKE 'Questions'")[0][1])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.few
def test_a_paused_leader_is_replaced_and_steps_back(one_stream: Stream) -> None:
    stream = one_stream
    beats = [stream.beat(), stream.beat()]
    leader = until(lambda: _holder_pid(stream), 10, "one leads")
    kill(leader, signal.SIGSTOP)
    (other,) = [beat for beat in beats if beat.pid != leader]
    until(lambda: _holder_pid(stream) == other.pid, LEASE_S + 2, "the other leads")
    kill(leader, signal.SIGCONT)
    never(lambda: _holder_pid(stream) != other.pid, 1.0, "the paused one leads again")
    assert [beat.stop() for beat in beats] == [0, 0]
