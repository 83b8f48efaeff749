"""Checker that compares a history with the contents of the stream. It shares no code with the system that it judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from emsworker.chaos.answers import check_answers
from emsworker.chaos.facts import Facts
from emsworker.chaos.history import HandlerRun, History, read_history
from emsworker.chaos.log import check_log
from emsworker.chaos.order import check_order
from emsworker.chaos.report import ChaosReport, Kind, Rules, Violation
from emsworker.extending.database import Database
from emsworker.extending.stream import Snapshot, read_snapshot
from emsworker.extending.values import counted


def check_stream(
    database: Database,
    folder: Path | str,
    rules: Rules | None = None,
    effects: Callable[[], Mapping[str, Mapping[str, int]]] | None = None,
) -> ChaosReport:
    """Check the history in a folder against a stream, which may be in use meanwhile.

    The confirmed sends are read before the stream, and everything else after it, so that events in between are not
    mistaken for errors.

    Args:
        effects: counts the effects for ``Rules.effects``; called after the snapshot of the stream.

    Raises:
        FileNotFoundError, ValueError: the history is missing or damaged.
    """
    before = read_history(folder)
    rules, snapshot = rules or Rules(), database.call(read_snapshot)
    if effects is not None:
        rules = replace(rules, effects=effects())
    history = read_history(folder, until=read_history(folder).latest)
    confirmed = {where for where, sent in before.sent.items() if sent.confirmed_at is not None}
    history.sent = {
        where: sent if where in confirmed else replace(sent, confirmed_at=None) for where, sent in history.sent.items()
    }
    return check(history, snapshot, rules)


def check(history: History, snapshot: Snapshot, rules: Rules) -> ChaosReport:
    """Judge a history.

    Args:
        snapshot: a snapshot of the stream, taken after the confirmed sends of the history were read.
        rules: the rules of the check.
    """
    facts = Facts(history, snapshot, rules)
    repeated, beyond = _repetitions(facts)
    parts: tuple[Callable[[Facts], Iterator[Violation]], ...] = (
        _lost,
        _phantoms,
        _effects,
        _reused,
        _cancelled,
        check_answers,
        _stuck,
        check_order,
        check_log,
    )
    found = [finding for part in parts for finding in part(facts)]
    confirmed = sum(sent.confirmed_at is not None for sent in history.sent.values())
    finished = sum(run.ended is not None for run in history.runs)
    return ChaosReport(len(history.sent), confirmed, finished, repeated, [*found, *beyond])


def _lost(facts: Facts) -> Iterator[Violation]:
    for sent in facts.history.sent.values():
        if sent.confirmed_at is None or facts.is_pending(sent):
            continue  # a delayed message has no place yet, though a later run may give one
        place = facts.place_of(sent)
        if place is None:
            if not facts.run_anywhere(sent) and facts.operations.cancelled_at(sent) is None:
                yield Violation(Kind.LOST, f"{sent.topic} {sent.uid}", "it was confirmed and is not in the stream")
            continue
        for group_id in facts.groups_of(sent.topic):
            if not facts.is_settled(group_id, sent, place) and not facts.is_waiting(group_id, place):
                group = facts.snapshot.groups[group_id].name
                text = f"{sent.uid} was confirmed and has neither run to its end, nor does it wait, nor is it dead"
                yield Violation(Kind.LOST, _where(sent.topic, *place), text, group)
        if gone := facts.gone(sent, place):
            yield Violation(Kind.LOST, _where(sent.topic, *place), gone)


def _stuck(facts: Facts) -> Iterator[Violation]:
    """Find messages that wait after all work is done: in the outbox, a lane, a retry or a claim."""
    for sent in facts.history.sent.values() if facts.rules.settled else ():
        if facts.is_pending(sent):
            yield Violation(Kind.STUCK, f"{sent.topic} {sent.uid}", "it is still in the outbox")
        elif (place := facts.place_of(sent)) is not None:
            for group_id in facts.groups_of(sent.topic):
                if facts.is_waiting(group_id, place) and not facts.has_finished(group_id, sent):
                    group = facts.snapshot.groups[group_id].name
                    yield Violation(Kind.STUCK, _where(sent.topic, *place), f"{sent.uid} still waits", group)


def _phantoms(facts: Facts) -> Iterator[Violation]:
    asked, topics = facts.history.sent, {topic for topic, _ in facts.history.sent}
    for run in facts.history.runs:
        if run.topic in topics and (run.topic, run.uid) not in asked:
            yield Violation(Kind.PHANTOM, _where(*run.place), f"{run.uid} was run, but it was never sent", run.group)
    for topic, places in facts.places.items():
        for uid, found in places.items():
            if topic in topics and (topic, uid) not in asked:
                yield Violation(
                    Kind.PHANTOM, _where(topic, *found[0]), f"{uid} is in the stream, but it was never sent"
                )
            if len(found) > 1:
                yield Violation(
                    Kind.DUPLICATE, _where(topic, *found[1]), f"{uid} is in the stream {counted(len(found), 'time')}"
                )


def _effects(facts: Facts) -> Iterator[Violation]:
    asked = {uid: sent for (_, uid), sent in facts.history.sent.items()}
    for group, effects in facts.rules.effects.items():
        for uid, count in effects.items():
            if uid not in asked:
                yield Violation(Kind.PHANTOM, uid, "it has an effect, but it was never sent", group)
            elif count > facts.most_effects(group, asked[uid]):
                yield Violation(Kind.EFFECT, uid, f"its effect is there {counted(count, 'time')}", group)
        # A message that was finished only now may have got its effect after these were counted.
        for sent in asked.values() if facts.rules.settled else ():
            if not effects.get(sent.uid) and facts.should_have_effect(group, sent):
                yield Violation(Kind.EFFECT, sent.uid, "it is done, and its effect is not there", group)


def _cancelled(facts: Facts) -> Iterator[Violation]:
    """Find runs of cancelled messages: one cancelled while delayed is never run, others only if read before."""
    runs: dict[tuple[str, str], list[HandlerRun]] = defaultdict(list)
    for run in facts.history.runs:
        runs[run.topic, run.uid].append(run)
    for where, sent in facts.history.sent.items():
        operation = facts.operations.cancelled_at(sent)
        if operation is None or not (sent.uid in operation.uids or facts.is_cancelled(sent)):
            continue
        for run in runs[where]:
            if run.began > operation.until + facts.rules.read_ahead_s:
                text = f"{sent.uid} was run {run.began - operation.until:.3f} s after it had been cancelled"
                yield Violation(Kind.CANCELLED, _where(*run.place), text, run.group)


def _reused(facts: Facts) -> Iterator[Violation]:
    seen: dict[tuple[str, int, int], str] = {}
    confirmed = [
        ((sent.topic, sent.partition, sent.offset), sent.uid)
        for sent in facts.history.sent.values()
        if sent.partition is not None and sent.offset is not None
    ]
    for place, uid in [*confirmed, *((run.place, run.uid) for run in facts.history.runs)]:
        first = seen.setdefault(place, uid)
        if first != uid:
            yield Violation(Kind.OFFSET_REUSED, _where(*place), f"it was {first}, and later {uid}")


def _repetitions(facts: Facts) -> tuple[int, list[Violation]]:
    """Count the finished runs that were repeated for a known reason, and return findings for the others."""
    by_message: dict[tuple[str, str, str], list[HandlerRun]] = defaultdict(list)
    last: dict[tuple[int, int], HandlerRun] = {}
    for run in facts.history.runs:
        if run.ended is None or not facts.is_final(run):
            continue
        by_message[run.topic, run.uid, run.group].append(run)
        thread = run.pid, run.thread
        if thread not in last or (last[thread].ended or 0) < run.ended:
            last[thread] = run
    repeated, beyond = 0, []
    for (topic, uid, group), runs in by_message.items():
        for run, following in pairwise(
            sorted(runs, key=lambda run: run.began)
        ):  # a zombie ends late, but it began first
            is_last = last[run.pid, run.thread] is run
            if facts.operations.explains(run, following) or facts.timed_out(run):
                repeated += 1
                continue
            if facts.may_be_repeated(run, is_last=is_last):
                repeated += 1
                continue
            text = f"{uid} had run to its end in process {run.pid}, which no fault had hit, and was run again"
            beyond.append(Violation(Kind.DUPLICATE, _where(topic, run.partition, run.offset), text, group))
    return repeated, beyond


def _where(topic: str, partition: int, offset: int) -> str:
    return f"{topic}/{partition}/{offset}"
