"""Processes are stopped in a moment that matters: while they have something in hand."""

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.waiting import until
from tests.support.worker import kill
from verification.chaos.arena import Arena

_SEIZE_S, _STOPPING_S = 60, 5


def seize_workers(arena: Arena, pids: Sequence[int]) -> None:
    """Stop processes while a handler runs in one of them."""
    _seize(arena, pids, _open_runs)


def seize_producer(arena: Arena, pid: int) -> None:
    """Stop a producer in the middle of a send: asked for, and not confirmed."""
    _seize(arena, [pid], _open_sends)


def release(pids: Sequence[int]) -> None:
    """Let them go on."""
    for pid in pids:
        kill(pid, signal.SIGCONT)


def _seize(arena: Arena, pids: Sequence[int], count_open: Callable[[Path], int]) -> None:
    def stopped_in_it() -> bool:
        for pid in pids:
            kill(pid, signal.SIGSTOP)
        for pid in pids:
            until(lambda pid=pid: _state(pid) in "TZ", _STOPPING_S, f"process {pid} is stopped", 0.001)  # type: ignore[misc]
        files = [path for pid in pids for path in (arena.folder / "history").glob(f"{pid}-*.jsonl")]
        if any(count_open(path) for path in files):
            return True
        release(pids)
        return False

    pause_s = arena.chance.uniform(0.01, 0.03)
    until(stopped_in_it, _SEIZE_S, f"one of {pids} has something in hand:\n{arena.tail()}", pause_s)


def _state(pid: int) -> str:
    """Of all threads of a process: T if they are stopped, Z if it is gone, R if one of them is not stopped yet."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        states = {(task / "stat").read_text().rsplit(")", 1)[1].split()[0] for task in tasks}
    except OSError:
        return "Z"
    return "T" if states == {"T"} else "R"


def _open_runs(path: Path) -> int:
    events = _events(path)
    ended = {event["run"] for event in events if event["event"] == "end"}
    return sum(event["event"] == "begin" and event["run"] not in ended for event in events)


def _open_sends(path: Path) -> int:
    """Those that were asked for a moment ago; what raised was asked for earlier, and is never confirmed."""
    events, since = _events(path), time.monotonic() - 1
    confirmed = {event["uid"] for event in events if event["event"] == "sent"}
    return sum(event["event"] == "send" and event["at"] > since and event["uid"] not in confirmed for event in events)


def _events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]
