"""Checks of order and overlap: the order of ordered groups, and no message that is run by two owners at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

from emsworker.chaos.facts import Facts
from emsworker.chaos.history import HandlerRun
from emsworker.chaos.operations import Epoch
from emsworker.chaos.report import Kind, Violation

_ORDERED = ("partition", "key")
Lane = tuple[str, str, int, str | None, Epoch]


def check_order(facts: Facts) -> Iterator[Violation]:
    """Find runs that began too early in their order, and runs of one message at the same time."""
    lanes: dict[Lane, dict[int, list[HandlerRun]]] = defaultdict(lambda: defaultdict(list))
    messages: dict[tuple[str, str, str], list[HandlerRun]] = defaultdict(list)
    for run in sorted(facts.history.runs, key=lambda run: run.began):
        runs = messages[run.topic, run.uid, run.group]
        repeated = any(one.ended is not None and one.ended < run.began and facts.is_final(one) for one in runs)
        runs.append(run)
        if (lane := _lane(facts, run, repeated)) is not None:
            lanes[lane][run.offset].append(run)
    for lane, by_offset in lanes.items():
        yield from _early(facts, lane, by_offset)
    for runs in messages.values():
        yield from _at_once(facts, runs)


def _lane(facts: Facts, run: HandlerRun, repeated: bool) -> Lane | None:
    group_id = facts.by_name.get((run.topic, run.group))
    order = facts.snapshot.groups[group_id].order if group_id is not None else "none"
    if order not in _ORDERED or (order == "key" and run.key is None):
        return None
    epoch = facts.operations.epoch(run, repeated)
    return None if epoch is None else (run.topic, run.group, run.partition, run.key if order == "key" else None, epoch)


def _early(facts: Facts, lane: Lane, by_offset: dict[int, list[HandlerRun]]) -> Iterator[Violation]:
    """Find runs that began before all earlier messages of their lane had ended, in their first complete or last run."""
    free_at, blocker = -math.inf, 0
    for offset in sorted(by_offset):
        runs = by_offset[offset]
        first = min(runs, key=lambda run: run.began)
        if first.began < free_at:
            text = f"it began {free_at - first.began:.3f} s before {blocker} had ended"
            yield Violation(Kind.ORDER, f"{lane[0]}/{lane[2]}/{offset}", text, lane[1])
        ends = _ended_at(facts, lane, offset, runs)
        if ends > free_at:
            free_at, blocker = ends, offset


def _ended_at(facts: Facts, lane: Lane, offset: int, runs: list[HandlerRun]) -> float:
    ends = [run.ended for run in runs if run.ended is not None and facts.is_final(run)]
    if ends:
        return min(ends)
    group_id = facts.by_name[lane[0], lane[1]]
    if facts.rules.effects.get(lane[1], {}).get(runs[0].uid):
        return max(run.began for run in runs)  # it was committed, and its process died before it could record that
    again = facts.operations.again(lane[0], lane[1], lane[2], offset)
    revived = again or facts.operations.is_requeued(runs[0].uid, lane[0], lane[1])
    if revived or (group_id, lane[2], offset) in facts.snapshot.dead | facts.snapshot.given_up:
        return _last_end(runs)
    sent = facts.history.sent.get((lane[0], runs[0].uid))
    if sent is not None and facts.is_cancelled(sent) and (cancelled := facts.operations.cancelled_at(sent)):
        return max(_last_end(runs), cancelled.at)  # it does not become a dead letter, and is not run again
    if facts.is_skipped(group_id, lane[2], offset):
        return _last_end(runs)
    return math.inf


def _last_end(runs: list[HandlerRun]) -> float:
    return max(run.began if run.ended is None else run.ended for run in runs)


def _at_once(facts: Facts, runs: list[HandlerRun]) -> Iterator[Violation]:
    for number, run in enumerate(runs):
        group_id = facts.by_name.get((run.topic, run.group))
        if run.ended is None or group_id is None:
            continue  # a process that died in it ran at most until the fault that killed it
        timeout_s = facts.snapshot.groups[group_id].timeout_s
        for other in runs[number + 1 :]:
            if other.began >= run.ended or (other.pid, other.thread) == (run.pid, run.thread):
                continue
            if facts.was_hit(run, run.ended) or run.ended - run.began > timeout_s:
                continue  # its lease or its timeout was over: it may continue to run, but cannot finish anything
            if facts.operations.takes_away(run, run.ended):
                continue
            text = f"process {other.pid} began to run {run.uid} while process {run.pid} ran it"
            where = f"{run.topic}/{run.partition}/{run.offset}"
            yield Violation(Kind.CLAIMED_TWICE, where, text, run.group)
