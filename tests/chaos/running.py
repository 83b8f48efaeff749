"""Runs a scenario and makes a row of the table out of what came of it."""

import math
import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from emsworker.chaos import Fault, History, Kind, read_history
from emsworker.local import Database as Server
from emsworker.local import Redis
from tests.chaos.arena import opened
from tests.chaos.names import GROUPS
from tests.chaos.scenarios import Scenario
from tests.support.worker import ROOT


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


def run_scenario(
    scenario: Scenario, server: Server, redis: Redis | None, allocator: str, folder: Path, seed: int, root: Path = ROOT
) -> Row:
    """Bring it about, and judge.

    Args:
        root: the folder whose code the processes run.

    Raises:
        AssertionError: it did not recover at all.
    """
    began = time.monotonic()
    chance = random.Random(f"{seed} {scenario.name} {server.flavor}")
    allocator = "redis" if scenario.redis else allocator
    options = {"allocator": allocator, "chance": chance, "networked": scenario.networked}
    options |= {"settings": scenario.settings, "topic": scenario.topic, "root": root}
    with opened(server, redis if allocator == "redis" else None, folder, **options) as arena:  # type: ignore[arg-type]
        arena.start()
        scenario.bring_about(arena)
        arena.goes_on()
        arena.finish()
        if scenario.leases_hold:
            arena.note_lost_leases()
        report = arena.judge()
        dead = arena.looker.rows("SELECT COUNT(*) FROM ems_dead")[0][0]
    history = read_history(folder / "history")
    counts = report.counts
    named = (Kind.LOST, Kind.PHANTOM, Kind.ORDER)
    wrong = "\n".join(str(finding) for finding in report.findings[:8])
    if dead != scenario.dead:
        wrong += f"\n{dead} dead letters, and there should be {scenario.dead}"
    return Row(
        scenario=scenario.name,
        server=server.flavor,
        allocator=allocator,
        sent=report.confirmed,
        run=report.runs,
        lost=counts[Kind.LOST],
        phantom=counts[Kind.PHANTOM],
        duplicated=report.repeated,
        order=counts[Kind.ORDER],
        other=sum(counts.values()) - sum(counts[kind] for kind in named),
        recovery_s=recovery_s(history),
        heals_within_s=scenario.heals_within_s,
        took_s=round(time.monotonic() - began, 1),
        wrong=wrong.strip(),
    )


def recovery_s(history: History) -> float | None:
    """How long recovery took after the faults of a history, in seconds: see :class:`Row`."""
    hit = sorted(span for fault in history.faults if fault.pid is not None for span in _after_hit(history, fault))
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
