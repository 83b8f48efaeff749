"""Runs a scenario and makes a row of the table out of what came of it."""

import math
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from emsworker.chaos import Fault, Finding, History, Kind, Report, read_history
from emsworker.local import Database as Server
from emsworker.local import Redis
from tests.chaos.arena import LOST_LEASE, Arena, opened
from tests.chaos.names import GROUPS
from tests.chaos.scenarios import Scenario


@dataclass(frozen=True)
class Row:
    """What came of a scenario on a server.

    Attributes:
        recovery_s: of messages that a process had in hand when it was hit, until 99 of 100 were done elsewhere; after
            other faults until each group runs again and a send is confirmed.
        other: findings of the other kinds.
    """

    scenario: str
    server: str
    allocator: str
    sent: int
    run: int
    lost: int
    phantom: int
    duplicated: int
    order: int
    other: int
    recovery_s: float | None
    heals_within_s: float | None
    took_s: float
    wrong: str = ""
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether it is as it must be."""
        # None: the process had nothing in hand.
        late = None not in (self.heals_within_s, self.recovery_s) and self.recovery_s > self.heals_within_s  # type: ignore[operator]
        return not (self.wrong or self.lost or self.phantom or self.order or self.other or late)

    def to_json(self) -> dict[str, object]:
        """For a file."""
        return asdict(self) | {"good": self.good}


@dataclass
class Show:
    """Scenarios one after the other in one arena, each judged by what is new.

    Args:
        arena: where they happen.
        allocator: for the table.
    """

    arena: Arena
    allocator: str
    _seen: set[Finding] = field(default_factory=set)
    _before: Report | None = None

    def row(self, scenario: Scenario, settled: bool = False) -> Row:
        """Bring a scenario about, and judge.

        Raises:
            AssertionError: it did not recover at all.
        """
        began = time.monotonic()
        scenario.bring_about(self.arena)
        if scenario.leases_hold:
            self.arena.note_lost_leases()
        report = self.arena.judge(settled)
        new = [finding for finding in report.findings if finding not in self._seen]
        self._seen |= set(new)
        dead = self.arena.looker.rows("SELECT COUNT(*) FROM ems_dead")[0][0]
        wrong = [str(finding) for finding in new[:8]]
        if dead != scenario.dead:
            wrong.append(f"{dead} dead letters, and there should be {scenario.dead}")
        history = read_history(self.arena.folder / "history")
        history.faults = [fault for fault in history.faults if fault.until >= began]
        before, self._before = self._before, report
        counts = Counter(finding.kind for finding in new)
        named = counts[Kind.LOST], counts[Kind.PHANTOM], counts[Kind.ORDER]
        return Row(
            scenario=scenario.name,
            server=self.arena.server.flavor,
            allocator=self.allocator,
            sent=report.confirmed - (before.confirmed if before else 0),
            run=report.runs - (before.runs if before else 0),
            lost=named[0],
            phantom=named[1],
            duplicated=report.repeated - (before.repeated if before else 0),
            order=named[2],
            other=len(new) - sum(named),
            recovery_s=recovery_s(history),
            heals_within_s=scenario.heals_within_s,
            took_s=round(time.monotonic() - began, 1),
            wrong="\n".join(wrong),
        )


def _finish(arena: Arena) -> None:
    arena.finish()


def run_scenarios(
    scenarios: Sequence[Scenario], server: Server, redis: Redis | None, folder: Path, seed: int
) -> Iterator[Row]:
    """Run scenarios that share an arena, and at the end see that all was done.

    Args:
        scenarios: all of the same :attr:`Scenario.arena`.
        redis: the allocator, or ``None`` for MySQL's.
    """
    first = scenarios[0]
    chance = random.Random(f"{seed} {server.flavor} {first.name}")
    allocator = "redis" if redis else "mysql"
    options = {"allocator": allocator, "chance": chance, "networked": first.networked}
    options |= {"settings": first.settings, "topic": first.topic}
    with opened(server, redis, folder, **options) as arena:  # type: ignore[arg-type]
        show = Show(arena, allocator)
        arena.start()
        for scenario in scenarios:
            arena.mend()
            yield show.row(scenario)
        arena.goes_on()
        yield show.row(Scenario("all is done", _finish, dead=first.dead), settled=True)


def recovery_s(history: History) -> float | None:
    """How long recovery took after the faults of a history, in seconds: see :class:`Row`."""
    hits = [fault for fault in history.faults if fault.pid is not None and fault.name != LOST_LEASE]
    hit = sorted(span for fault in hits for span in _after_hit(history, fault))
    spans = [_after_all(history, fault) for fault in history.faults if fault.pid is None]
    spans += [hit[math.ceil(len(hit) * 0.99) - 1]] if hit else []
    known = [span for span in spans if span is not None]
    return round(max(known), 2) if known else None


def _after_hit(history: History, fault: Fault) -> Iterator[float]:
    """For each message that a process had in hand when it was hit: until somebody else had done it."""
    held = {
        (run.uid, run.group)
        for run in history.runs
        if run.pid == fault.pid and run.began <= fault.at and (run.ended is None or run.ended > fault.at)
    }
    done: dict[tuple[str, str], float] = {}
    for run in history.runs:
        where = run.uid, run.group
        if where in held and run.pid != fault.pid and run.ended is not None and run.outcome == "done":
            done[where] = min(run.ended, done.get(where, math.inf))
    yield from (end - fault.at for end in done.values())


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
