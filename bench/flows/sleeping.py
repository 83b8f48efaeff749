"""The cost of flows that sleep: memory of a worker and of a beat, statements of both, and what other flows notice."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.flows.costs import LOG_WRITES, ROWS, STATEMENTS, database_counters, difference
from bench.flows.lines import FIRST, SLEEP
from bench.flows.rates import markdown
from bench.flows.sides import EMS, Asked, Side, plain_environ, running
from bench.peers.arena import Arena
from bench.stage import QUICK, NotRight, Servers, Stage
from bench.studies.processes import family, processor_s, resident_mib
from emsworker.local import ServerMissing
from emsworker.local.engines import Flavor

_SLEEPING, _QUICK_SLEEPING = 1_000_000, 200_000
_WOKEN, _PAGE = 1_000, 100_000
_SETTLE_S, _QUIET_S, _IDLE_S, _ANSWER_S = 10.0, 40.0, 30.0, 180.0  # the beat looks at flows that were quiet for 30 s
_WORKER = Side(EMS.name, EMS.broker, (), EMS.program, (*EMS.worker, "--no-beat"))

Figures = dict[str, float]

_NUMBERS = " CROSS JOIN ".join(
    f"(SELECT 0 AS d {' '.join(f'UNION ALL SELECT {n * 10**power}' for n in range(1, 10))}) d{power}"
    for power in range(5)
)
_COPY_FLOW = f"""
INSERT INTO ems_flow
  (`key`, name, version, topic_id, state, run, owner, headers, args, waits, started_at, changed_at)
SELECT CONCAT('sleeper-', n.n), f.name, f.version, f.topic_id, f.state, f.run, UNHEX(LEFT(SHA2(n.n, 256), 32)),
  f.headers, f.args, f.waits, NOW(6), NOW(6)
FROM ems_flow f CROSS JOIN (SELECT %s + d0.d + d1.d + d2.d + d3.d + d4.d AS n FROM {_NUMBERS}) n WHERE f.id = %s"""
_COPY_STEP = """
INSERT INTO ems_flow_step (flow_id, step, kind, name, due_at, began_at)
SELECT f.id, s.step, s.kind, s.name, s.due_at, NOW(6) FROM ems_flow f JOIN ems_flow_step s ON s.flow_id = %s
WHERE f.id > %s"""
_UID = "UNHEX(LEFT(SHA2(CONCAT('message', f.id), 256), 32))"
_COPY_MESSAGE = f"""
INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at)
SELECT o.topic_id, o.due_at, {_UID}, o.headers, CONCAT('[[', f.id, '],{{}}]'), o.producer_id, NOW(6)
FROM (SELECT * FROM ems_outbox ORDER BY created_at LIMIT 1) o JOIN ems_flow f ON f.id > %s"""
_LAST_WOKEN = "SELECT MAX(id) FROM (SELECT id FROM ems_flow WHERE `key` LIKE 'sleeper-%%' ORDER BY id LIMIT %s) f"
_WAKE_STEPS = "UPDATE ems_flow_step SET due_at = NOW(6) WHERE ended_at IS NULL AND flow_id <= %s"
_WAKE_MESSAGES = f"""
UPDATE ems_flow f JOIN ems_outbox o ON o.topic_id = f.topic_id AND o.uid = {_UID} SET o.due_at = NOW(6)
WHERE f.id <= %s AND f.state = 'waiting'"""
_AWAKE = "SELECT COUNT(*) FROM ems_flow WHERE ended_at IS NOT NULL AND `key` LIKE 'sleeper-%'"


def measure(flavors: Sequence[Flavor], *, quick: bool) -> dict[str, dict[str, Figures]]:
    """Measure on each server: without flows, and with many that sleep."""
    found: dict[str, dict[str, Figures]] = {}
    for flavor in flavors:
        try:
            with tempfile.TemporaryDirectory(prefix="ems-bench-") as name, Servers(Path(name), flavor) as servers:
                found[f"{flavor} {servers.database.version}"] = Sleep(servers, Path(name)).run(
                    _QUICK_SLEEPING if quick else _SLEEPING
                )
        except ServerMissing as error:
            print(f"{flavor} is left out: {error}", file=sys.stderr)
    return found


class Sleep:
    """A worker and a beat on a server."""

    def __init__(self, servers: Servers, folder: Path) -> None:
        self._servers, self._folder = servers, folder

    def run(self, wanted: int) -> dict[str, Figures]:
        """Watch them without flows, and with flows that sleep; wake some of these, which must end."""
        with ExitStack() as stack:
            arena = stack.enter_context(Arena(self._servers, self._folder))
            asked = stack.enter_context(Asked(_WORKER, self._servers, arena))
            env = {**plain_environ(), **asked.environ}
            beat = stack.enter_context(
                running([sys.executable, "-m", "emsworker", "beat", "--log-level", "warning"], env)
            )
            stage = Stage(asked.environ["EMS_URL"], None, self._folder, QUICK)
            pids = {"worker": asked.worker_pid, "beat": beat.pid}
            none = self._watch(asked, pids, _SETTLE_S)
            made = fill(stage, asked, wanted)
            many = self._watch(asked, pids, _QUIET_S)
            return {"none": none, f"{wanted:,} asleep": many | made | wake(stage)}

    def _watch(self, asked: Asked, pids: dict[str, int], settle_s: float) -> Figures:
        """The figures of processes that have nothing to do, after a while; then those of a few flows of one step."""
        server = self._servers.database.pid
        assert server is not None
        watched = [server, *pids.values()]
        time.sleep(settle_s)
        before, used = database_counters(self._servers), sum(map(_processor_s, watched))
        time.sleep(_IDLE_S)
        counted = difference(before, database_counters(self._servers))
        found = {f"{name} MiB": sum(map(resident_mib, family(pid))) for name, pid in pids.items()}
        found |= {f"{name}/s": counted[name] / _IDLE_S for name in (STATEMENTS, ROWS, LOG_WRITES)}
        found["processors %"] = 100 * (sum(map(_processor_s, watched)) - used) / _IDLE_S
        latencies = asked.ask(FIRST, FIRST.amount(quick=False), _ANSWER_S)
        assert isinstance(latencies, list)
        found |= {"start to first step, p50 ms": median(latencies)}
        print(f"  {self._servers.database.flavor}: {found}", file=sys.stderr, flush=True)
        return found


def _processor_s(pid: int) -> float:
    return sum(map(processor_s, family(pid)))


def fill(stage: Stage, asked: Asked, wanted: int) -> Figures:
    """Start a flow that sleeps, and copy its rows as they are."""
    asked.ask(SLEEP, (1, 1), _ANSWER_S)
    began = time.monotonic()
    with stage.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM ems_flow WHERE state = 'waiting'")
        ((first,),) = cursor.fetchall()
        last = stage.value("SELECT MAX(id) FROM ems_flow")
        for number in range(0, wanted, _PAGE):
            cursor.execute(_COPY_FLOW, (number, first))
            cursor.execute(_COPY_STEP, (first, last))
            cursor.execute(_COPY_MESSAGE, (last,))
            cursor.execute("SELECT MAX(id) FROM ems_flow")
            ((last,),) = cursor.fetchall()
    stage.check("flows that sleep", wanted + 1, "SELECT COUNT(*) FROM ems_flow WHERE state = 'waiting'")
    return {"made in s": time.monotonic() - began}


def wake(stage: Stage) -> Figures:
    """Let the time of some come; each must end.

    Raises:
        NotRight: one does not.
    """
    with stage.connect() as connection, connection.cursor() as cursor:
        cursor.execute(_LAST_WOKEN, (_WOKEN,))
        ((last,),) = cursor.fetchall()
        cursor.execute(_WAKE_STEPS, (last,))
        cursor.execute(_WAKE_MESSAGES, (last,))
    began = time.monotonic()
    _wait_for(lambda: stage.value(_AWAKE) >= _WOKEN, f"{_WOKEN} flows whose time has come")
    return {f"{_WOKEN:,} woken in s": time.monotonic() - began}


def _wait_for(done: Callable[[], Any], what: str) -> None:
    until = time.monotonic() + _ANSWER_S
    while not done():
        if time.monotonic() > until:
            raise NotRight(f"{what} have not ended within {_ANSWER_S:g} s")
        time.sleep(0.1)


def table(found: dict[str, dict[str, Figures]]) -> str:
    """A column for each server and number of flows."""
    if not found:
        return "Nothing was measured: no server is installed."
    columns = [(f"{server}, {flows}", figures) for server, by in found.items() for flows, figures in by.items()]
    names = list(dict.fromkeys(name for _, figures in columns for name in figures))
    rows: list[Sequence[str]] = [["a worker and a beat", *(title for title, _ in columns)]]
    rows += [[name, *(f"{figures[name]:,.1f}" if name in figures else "" for _, figures in columns)] for name in names]
    return markdown(rows)
