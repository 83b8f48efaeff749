"""What a history tells of faults: how long it took until all was well again, and how much was run again."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator

from emsworker.chaos import Fault, HandlerRun, History
from tests.support.machine import machine_s
from verification.chaos.arena import LOST_LEASE, ORPHANED
from verification.chaos.names import GROUPS

# Run again after kill -9: what one thread had finished since its last acked offset. The promise is 100 ms of work, or
# one message; the kill may also hit the commit of the acked offset. Time that the machine gives to others is not work.
AGAIN_S, _SLACK_S = 0.1, 0.05


def recovery_s(history: History) -> float | None:
    """How long recovery took after the faults of a history, in seconds: see :class:`Row`."""
    hit = sorted(span for fault in _hits(history) for span in _after_hit(history, fault))
    spans = [_after_all(history, fault) for fault in history.faults if fault.pid is None]
    spans += [hit[math.ceil(len(hit) * 0.99) - 1]] if hit else []
    known = [span for span in spans if span is not None]
    return round(max(known), 2) if known else None


def undone(history: History, unfinished: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Messages and groups that processes had in hand when they were hit, and that nobody else has done since.

    Args:
        unfinished: messages and groups that the tables hold a claim or a retry of. The others were finished by those
            who
            were hit: before they died, though they could not say so, or after a pause in which nobody recovered them.
    """
    left = {where for fault in _hits(history) for where in _held(history, fault) - _done(history, fault).keys()}
    return left & set(unfinished)


def _hits(history: History) -> list[Fault]:
    return [fault for fault in history.faults if fault.pid is not None and fault.name != LOST_LEASE]


def _held(history: History, fault: Fault) -> set[tuple[str, str]]:
    return {
        (run.uid, run.group)
        for run in history.runs
        if run.pid == fault.pid and run.began <= fault.at and (run.ended is None or run.ended > fault.at)
    }


def _done(history: History, fault: Fault) -> dict[tuple[str, str], float]:
    """When somebody else was first done with what was held; an orphan may finish what it has in hand by itself."""
    held, done = _held(history, fault), dict[tuple[str, str], float]()
    for run in history.runs:
        where, other = (run.uid, run.group), run.pid != fault.pid or fault.name == ORPHANED
        if where in held and other and run.ended is not None and run.ended > fault.at and run.outcome == "done":
            done[where] = min(run.ended, done.get(where, math.inf))
    return done


def _after_hit(history: History, fault: Fault) -> Iterator[float]:
    """For each message that a process had in hand when it was hit: until it was done."""
    yield from (end - fault.at for end in _done(history, fault).values())


def _after_all(history: History, fault: Fault) -> float | None:
    """Until a send is confirmed and each group has finished a run."""
    firsts = [
        min(
            (s.confirmed_at for s in history.sent.values() if s.confirmed_at and s.confirmed_at > fault.until),
            default=None,
        )
    ]
    for group in GROUPS:
        ends = (run.ended for run in history.runs if run.group == group and run.outcome == "done")
        firsts.append(min((end for end in ends if end and end > fault.until), default=None))
    known = [first for first in firsts if first is not None]
    return max(known) - fault.until if len(known) == len(firsts) else None


def too_much_again(history: History) -> list[str]:
    """Threads of killed processes of which more work was repeated than the promise allows, in words."""
    killed = {fault.pid: fault.at for fault in history.faults if fault.name == "kill"}
    later: dict[tuple[str, str], float] = defaultdict(lambda: -math.inf)
    for run in history.runs:
        if run.outcome == "done":
            later[run.uid, run.group] = max(later[run.uid, run.group], run.began)
    threads: dict[tuple[int, int], list[HandlerRun]] = defaultdict(list)
    for run in history.runs:
        if run.pid in killed and run.outcome == "done" and later[run.uid, run.group] > killed[run.pid]:
            threads[run.pid, run.thread].append(run)
    found = []
    for (pid, _), runs in threads.items():
        runs.sort(key=lambda run: run.began)
        spans = [machine_s(run.ended) - machine_s(run.began) for run in runs if run.ended is not None]
        if sum(spans[:-1]) > AGAIN_S + _SLACK_S:
            found.append(f"a thread of process {pid}, killed, had {sum(spans):.2f} s of work run again")
    return found
