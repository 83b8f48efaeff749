"""What a message, an idle worker and a start cost."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pymysql

from bench import latency, worker
from bench.app import build
from bench.load import BODY
from bench.peers.arena import Arena
from bench.peers.contest import Amount, run
from bench.peers.systems import EMS, PEERS, System
from bench.stage import NotRight, Servers, Stage
from bench.studies.backlog import drain
from bench.studies.finding import Finding, Lab, Study
from bench.studies.processes import family, processor_s, resident_mib
from emsworker.core.url import DatabaseUrl

_ROOT = Path(__file__).parents[2]
_SETTLE_S, _LOOK_S = 12.0, 0.2
_GROWTH_MIB, _MOST_MIB = 3, 60
_ROWS = ("Innodb_rows_inserted", "Innodb_rows_updated", "Innodb_rows_deleted")  # MySQL; MariaDB counts by table
_REDO = ("Innodb_lsn_current", "Innodb_redo_log_current_lsn")  # MariaDB's name, MySQL's name


def _status(servers: Servers) -> dict[str, int]:
    """The server's counters; MariaDB is told to count rows by table, of which temporary tables are none."""
    url = DatabaseUrl.parse(servers.database.admin_url)
    with (
        pymysql.connect(host=url.host, port=url.port, user=url.user, password=url.password) as connection,
        connection.cursor() as cursor,
    ):
        names = (*_ROWS, *_REDO, "Innodb_data_fsyncs", "Queries")
        cursor.execute(f"SHOW GLOBAL STATUS WHERE Variable_name IN ({','.join(['%s'] * len(names))})", names)
        found = {str(name): int(value) for name, value in cursor.fetchall()}
        if servers.database.flavor == "mariadb":
            cursor.execute("SET GLOBAL userstat = 1")
            cursor.execute("SELECT COALESCE(SUM(ROWS_CHANGED), 0) FROM information_schema.TABLE_STATISTICS")
            found[_ROWS[0]] = int((cursor.fetchone() or (0,))[0])
        return found


def _costs(before: dict[str, int], after: dict[str, int], messages: int) -> dict[str, float]:
    def spent(*names: str) -> float:
        return sum(after.get(name, 0) - before.get(name, 0) for name in names) / messages

    return {
        "rows_written": spent(*_ROWS),
        "redo_bytes": spent(*_REDO),
        "fsyncs": spent("Innodb_data_fsyncs"),
    }


def writes(lab: Lab) -> list[Finding]:
    """Rows, redo bytes and fsyncs a message, of sending by one caller and of consuming, beside the original's."""
    original = next(peer for peer in PEERS if peer.name == "original")
    sides: list[tuple[System, str]] = [(EMS, "EMS"), (original, "original algorithm")]
    findings = {
        (system.name, phase): Finding("cheap/writes", f"{title}, {phase}")
        for phase in ("sending", "consuming")
        for system, title in sides
    }
    waiting = lab.size.drained // 8
    with Arena(lab.servers, lab.folder) as arena:
        for _ in range(lab.size.repeats):
            for system, _ in sides:
                empty, filled, done = _seen(lab, arena, system, waiting)
                findings[system.name, "sending"].add(**_costs(empty, filled, waiting))
                findings[system.name, "consuming"].add(**_costs(filled, done, waiting))
    return list(findings.values())


def _seen(lab: Lab, arena: Arena, system: System, waiting: int) -> list[dict[str, int]]:
    """The server's counters before messages are sent, after that, and when they have run."""
    seen: list[dict[str, int]] = []
    run(arena, system, Amount(waiting, waiting, 0, 0), lambda: seen.append(_status(lab.servers)))
    return seen


def idle(lab: Lab) -> list[Finding]:
    """Four processes of eight threads that have nothing to do, the beat and the leases included; then one message."""
    findings = []
    for title, redis in (("4 x 8 threads", False), ("4 x 8 threads, woken by Redis", True)):
        if redis and lab.servers.redis is None:
            continue
        finding = Finding("cheap/idle", title)
        for _ in range(lab.size.repeats):
            with (
                lab.servers.stage(lab.stage_size, redis=redis) as stage,
                worker.running(stage, worker.Shape("latency", 4, 8)) as process,
            ):
                finding.add(**_watch_idle(lab, process.pid), **_first_message(stage))
        findings.append(finding)
    return findings


def _first_message(stage: Stage) -> dict[str, float]:
    """From just before ``delay()`` to the handler's first line, the very first that comes."""
    tasks = build(url=stage.url, redis_url=stage.redis_url)
    tasks.app.send("events", BODY)  # the sender is connected
    tasks.stamp.delay(0, time.time_ns())
    tasks.app.close()
    [took] = latency.stamps(stage, 1)
    return {"ms_of_the_first_message": took}


def _watch_idle(lab: Lab, pid: int) -> dict[str, float]:
    time.sleep(_SETTLE_S)  # what a start leaves to do is over, and pollers have slowed down
    pids = family(pid)
    asked = [_status(lab.servers)["Queries"] for _ in range(2)]  # asking takes queries, too
    used, began = {one: processor_s(one) for one in pids}, time.monotonic()
    time.sleep(lab.size.idle_s)
    took = time.monotonic() - began
    busiest = max(processor_s(one) - used[one] for one in pids)
    queries = _status(lab.servers)["Queries"] - asked[1] - (asked[1] - asked[0])
    return {
        "queries_per_s": queries / took,
        "busiest_process_percent_of_a_processor": 100 * busiest / took,
        "MiB_of_a_process": max(resident_mib(one) for one in pids),
    }


class _Watcher:
    """Looks at the memory of a worker's processes while it works."""

    def __init__(self) -> None:
        self.seen: list[float] = []  # of the largest, oldest first
        self._over = threading.Event()

    def _look(self, pids: list[int]) -> None:
        while not self._over.wait(_LOOK_S):
            self.seen.append(max(resident_mib(pid) for pid in pids))

    @contextmanager
    def watching(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Look again and again until the block ends."""
        thread = threading.Thread(target=self._look, args=(family(process.pid),))
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def memory(lab: Lab) -> list[Finding]:
    """The resident memory of the largest process while a worker runs many messages.

    Raises:
        NotRight: it goes on growing after the first tenth, or is more than a worker may take.
    """
    finding = Finding("cheap/memory", f"{lab.size.watched:,} messages")
    for _ in range(lab.size.repeats):
        with lab.servers.stage(lab.stage_size) as stage:
            topic_id = _noop_topic(stage)
            watcher = _Watcher()
            rate = drain(stage, topic_id, lab.size.watched, worker.Shape("noop"), watcher.watching)
        seen = watcher.seen
        _judge_memory(seen)
        early = seen[len(seen) // 10]
        finding.add(MiB_after_a_tenth=early, MiB_at_the_end=seen[-1], MiB_at_most=max(seen), messages_per_s=rate)
    return [finding]


def _judge_memory(seen: list[float]) -> None:
    if not seen:
        raise NotRight("cheap/memory: too few messages to look at the memory meanwhile")
    early, most = seen[len(seen) // 10], max(seen)
    if most > early + _GROWTH_MIB or most > _MOST_MIB:
        raise NotRight(
            f"cheap/memory: {early:.1f} MiB after a tenth, {most:.1f} at most; "
            f"it may grow by {_GROWTH_MIB} and take {_MOST_MIB}"
        )


def _noop_topic(stage: Stage) -> int:
    tasks = build(url=stage.url)
    tasks.noop.delay(0)
    topic_id = tasks.app.stream.catalog.topic("noop").id
    tasks.app.close()
    return topic_id


def start(lab: Lab) -> list[Finding]:
    """How long a command line takes to answer, and a worker to be ready."""
    helping, ready = Finding("cheap/start", "`ems --help`"), Finding("cheap/start", "`ems worker --processes 2`, ready")
    with lab.servers.stage(lab.stage_size) as stage:
        for _ in range(2 * lab.size.repeats + 1):
            began = time.perf_counter()
            argv = [sys.executable, "-m", "emsworker", "--help"]
            subprocess.run(argv, cwd=_ROOT, stdout=subprocess.DEVNULL, check=True)
            helping.add(ms=(time.perf_counter() - began) * 1000)
            ready.add(ms=_ready_ms(stage))
    return [helping, ready]


def _ready_ms(stage: Stage) -> float:
    """Until the line that says so."""
    began = time.perf_counter()
    log = stage.folder / f"start-{secrets.token_hex(4)}.log"
    with log.open("wb") as errors:
        process = subprocess.Popen(
            worker.Shape("noop").command(),
            cwd=_ROOT,
            env=worker.environment(stage),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
    assert process.stdout is not None
    with process.stdout:
        line = process.stdout.readline()
        took = (time.perf_counter() - began) * 1000
        process.terminate()
        code = process.wait(30)
    if not line.startswith(b"Ready: ") or code != 0:
        raise NotRight(f"cheap/start: the worker ended with exit code {code}: {line!r} {log.read_text()[-1000:]}")
    return took


STUDIES = (
    Study("cheap/writes", "what the server writes for a message", writes),
    Study("cheap/idle", "workers with nothing to do", idle),
    Study("cheap/memory", "the memory of a worker over many messages", memory),
    Study("cheap/start", "the time to start", start),
)
