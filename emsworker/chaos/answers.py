"""Check of what callers were told of cancelled calls: after ``cancelled`` nothing of a call begins or runs on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from emsworker.chaos.facts import REPORTING_S, Facts
from emsworker.chaos.history import HandlerRun, ToldState
from emsworker.chaos.report import Kind, Violation

_CANCELLED, _PENDING = "cancelled", "pending"


def check_answers(facts: Facts) -> Iterator[Violation]:
    """Find calls that go on after a caller was told that they are cancelled, and calls that stay pending."""
    runs: dict[tuple[str, str], list[HandlerRun]] = defaultdict(list)
    for run in facts.history.runs:
        runs[run.topic, run.uid].append(run)
    answers: dict[tuple[str, str], list[ToldState]] = defaultdict(list)
    for answer in sorted(facts.history.answers, key=lambda one: one.at):
        answers[answer.topic, answer.uid].append(answer)
    for where, told in answers.items():
        final = next((one for one in told if one.state == _CANCELLED), None)
        if final is not None:
            yield from _after(facts, final, runs[where])
            yield from _otherwise(final, told, runs[where])
        elif facts.rules.settled and told[-1].state == _PENDING:
            yield Violation(Kind.STUCK, f"{where[0]} {where[1]}", "it was cancelled, and its result is still pending")


def _after(facts: Facts, final: ToldState, runs: Sequence[HandlerRun]) -> Iterator[Violation]:
    for run in runs:
        place = f"{run.topic}/{run.partition}/{run.offset}"
        if facts.was_away(run, final.at) or facts.timed_out(run):
            continue  # it no longer owned its message, and could finish nothing
        if run.began > final.at:
            text = f"{run.uid} began {run.began - final.at:.3f} s after a caller was told that it is cancelled"
            yield Violation(Kind.CANCELLED, place, text, run.group)
        elif run.ended is not None and run.ended > final.at + REPORTING_S:
            text = f"{run.uid} ran on for {run.ended - final.at:.3f} s after a caller was told that it is cancelled"
            yield Violation(Kind.CANCELLED, place, text, run.group)


def _otherwise(final: ToldState, told: Sequence[ToldState], runs: Sequence[HandlerRun]) -> Iterator[Violation]:
    if any(run.outcome == "done" and run.ended is not None and run.ended <= final.at for run in runs):
        return  # it had ended while it was cancelled, and keeps its result
    for answer in told:
        if answer.at > final.at and answer.state != _CANCELLED:
            text = f"a caller was told that it is cancelled, and later that it is {answer.state}"
            yield Violation(Kind.CANCELLED, f"{answer.topic} {answer.uid}", text)
