"""One run of one system: send, have it consumed by two processes, send steadily, and see that nothing was lost."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.load import percentile
from bench.peers.apps.tally import VARIABLE, Tally
from bench.peers.arena import Arena
from bench.peers.systems import System
from bench.peers.venvs import python_of
from bench.stage import NotRight

_ROOT = Path(__file__).parents[2]
_STALL_S, _STOP_S, _SEND_S = 60.0, 40.0, 900.0
_WARM_UP = 100

Worker = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Amount:
    """How much one run is given.

    Args:
        waiting: messages sent before the workers start.
        ones: how many of them are sent one by one, where the system can send many at once.
        paced: messages sent at a steady rate afterwards, whose latency is taken; 0 for none.
        per_s: that rate.
    """

    waiting: int
    ones: int
    paced: int
    per_s: int


def run(arena: Arena, system: System, amount: Amount, between: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Figures by name.

    Args:
        between: called before anything is sent, when all that waits was sent, and when it has run and the workers have
            ended.

    Raises:
        NotRight: a message never ran, or a process failed.
        ServerMissing, ServerFailed: there is no such server, or no environment.
    """
    python = python_of(system.environment_name, system.requirements)
    folder = arena.folder / f"{system.name}-{secrets.token_hex(4)}"
    folder.mkdir(parents=True)
    warm_up = _WARM_UP if amount.paced else 0
    log = folder / "worker.log"
    tally = Tally.create(folder / "tally", amount.waiting + warm_up + amount.paced)
    with arena.fresh(system.broker) as found:
        env = _environment(folder / "tally") | found
        _send(python, system, env, "prepare")
        between()
        figures = _send(python, system, env, "fill", amount.waiting, amount.ones)
        between()
        with _working(python, system, env, log) as workers:
            _wait(system, tally, amount.waiting, workers, log)
            figures["consume/s"] = _rate(tally, amount.waiting)
            if amount.paced:
                last = amount.waiting + warm_up + amount.paced
                figures |= _send(python, system, env, "pace", amount.waiting, last, amount.per_s)
                _wait(system, tally, last, workers, log)
                figures |= _latency(tally, amount.waiting + warm_up)
        between()
    _check(system, tally)
    return figures


def _environment(tally: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return kept | {"PYTHONPATH": str(_ROOT), VARIABLE: str(tally)}


def _send(python: Path, system: System, env: dict[str, str], *arguments: object) -> dict[str, float]:
    argv = [str(python), "-m", "bench.peers.apps.sender", system.app, *map(str, arguments)]
    done = subprocess.run(argv, env=env, cwd=_ROOT, capture_output=True, text=True, timeout=_SEND_S)
    if done.returncode != 0:
        raise NotRight(f"{system.name}: sending ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@contextmanager
def _working(python: Path, system: System, env: dict[str, str], log: Path) -> Iterator[list[Worker]]:
    """The system's worker processes, ended with SIGTERM, and whatever outlives them with SIGKILL."""
    started: list[Worker] = []
    try:
        with log.open("wb") as output:
            for _ in range(system.copies):
                started.append(
                    subprocess.Popen(
                        [str(python), *system.worker],
                        env=env | {system.broker_variable: env.get("BENCH_BROKER", "")},
                        cwd=_ROOT,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        start_new_session=True,
                    )
                )
        yield started
        for process in started if system.ends else ():
            process.send_signal(signal.SIGTERM)
        for process in started if system.ends else ():
            process.wait(_STOP_S)
    except subprocess.TimeoutExpired as error:
        raise NotRight(f"{system.name}: its worker did not end within {_STOP_S:g} s of SIGTERM") from error
    finally:
        for process in started:
            _end(process)


def _end(process: Worker) -> None:
    with suppress(ProcessLookupError):  # nothing has outlived it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(system: System, tally: Tally, count: int, workers: list[Worker], log: Path) -> None:
    """Wait until the first so many messages have run; give up when a worker ends or nothing more runs for a minute."""
    missing, changed_at = count + 1, time.monotonic()
    while missing:
        left = sum(1 for runs, _, _ in tally.records()[:count] if runs == 0)
        if left != missing:
            missing, changed_at = left, time.monotonic()
        elif time.monotonic() - changed_at > _STALL_S or any(worker.poll() is not None for worker in workers):
            tail = log.read_text(errors="replace")[-2000:]
            raise NotRight(f"{system.name}: {missing} of {count} messages never ran: {tail}")
        time.sleep(0.1)


def _rate(tally: Tally, count: int) -> float:
    """Without the first tenth, in which processes start."""
    entered = sorted(record[2] for record in tally.records()[:count])
    skipped = count // 10
    return (count - skipped) / ((entered[-1] - entered[skipped]) / 1e9)


def _latency(tally: Tally, first: int) -> dict[str, float]:
    took = [(entered - sent) / 1e6 for _, sent, entered in tally.records()[first:]]
    return {"p50 ms": percentile(took, 0.5), "p99 ms": percentile(took, 0.99)}


def _check(system: System, tally: Tally) -> None:
    """Every message ran, and as nothing died, once."""
    runs = [record[0] for record in tally.records()]
    if lost := runs.count(0):
        raise NotRight(f"{system.name}: {lost} of {len(runs)} messages never ran")
    if sum(runs) != len(runs):
        raise NotRight(f"{system.name}: {len(runs)} messages ran {sum(runs)} times although nothing died")
