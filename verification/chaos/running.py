"""Runs a scenario and makes a row of the table out of what came of it."""

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from emsworker.chaos import ChaosReport, History, Kind, Violation, read_history
from emsworker.core.ids import uid_text
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis
from tests.support.waiting import until
from verification.chaos.arena import Arena, opened
from verification.chaos.recovery import recovery_s, too_much_again, undone
from verification.chaos.scenarios import Scenario

_HELD_S = 60.0
_UNFINISHED = """
SELECT m.uid, g.name FROM ems_claim c JOIN ems_group g ON g.id = c.group_id JOIN ems_message m ON m.topic_id =
g.topic_id AND m.`partition` = c.`partition` AND m.`offset` BETWEEN c.acked_to + 1 AND c.hi WHERE c.state <> 'done' AND
m.uid IS NOT NULL UNION SELECT m.uid, g.name FROM ems_retry r JOIN ems_group g ON g.id = r.group_id JOIN ems_message m
ON m.topic_id = g.topic_id AND m.`partition` = r.`partition` AND m.`offset` = r.`offset` WHERE m.uid IS NOT NULL
"""


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
    _seen: set[Violation] = field(default_factory=set)
    _before: ChaosReport | None = None

    def row(self, scenario: Scenario, settled: bool = False) -> Row:
        """Bring a scenario about, and judge.

        Raises:
            AssertionError: it did not recover at all.
        """
        began = time.monotonic()
        note = scenario.bring_about(self.arena) or ""
        until(lambda: not undone(self._since(began), self._unfinished()), _HELD_S, "all is done that was in hand", 0.2)
        if scenario.heals_within_s is not None and all(fault.pid is None for fault in self._since(began).faults):
            until(lambda: recovery_s(self._since(began)) is not None, _HELD_S, "every group goes on", 0.2)
        if scenario.leases_hold:
            self.arena.note_lost_leases()
        report = self.arena.judge(settled)
        new = [finding for finding in report.findings if finding not in self._seen]
        self._seen |= set(new)
        dead = self.arena.looker.rows("SELECT COUNT(*) FROM ems_dead")[0][0]
        wrong = [str(finding) for finding in new[:8]]
        if dead != scenario.dead:
            wrong.append(f"{dead} dead letters, and there should be {scenario.dead}")
        history = self._since(began)
        wrong += too_much_again(history)
        healed_s = recovery_s(history)
        if scenario.heals_within_s is not None and healed_s is None:
            wrong.append("nobody had anything in hand, so nothing is known of the recovery")
        before, self._before = self._before, report
        counts = Counter(finding.kind for finding in new)
        named = counts[Kind.LOST], counts[Kind.PHANTOM], counts[Kind.ORDER]
        return Row(
            scenario=scenario.name,
            server=self.arena.site.engine,
            allocator=self.allocator,
            sent=report.confirmed - (before.confirmed if before is not None else 0),
            run=report.runs - (before.runs if before is not None else 0),
            lost=named[0],
            phantom=named[1],
            duplicated=report.repeated - (before.repeated if before is not None else 0),
            order=named[2],
            other=len(new) - sum(named),
            recovery_s=healed_s,
            heals_within_s=scenario.heals_within_s,
            took_s=round(time.monotonic() - began, 1),
            wrong="\n".join(wrong),
            note=note,
        )

    def _since(self, began: float) -> History:
        history = read_history(self.arena.folder / "history")
        history.faults = [fault for fault in history.faults if fault.until >= began]
        return history

    def _unfinished(self) -> set[tuple[str, str]]:
        """Messages and groups of which there is a claim or a retry."""
        return {(uid_text(uid), group) for uid, group in self.arena.looker.rows(_UNFINISHED)}


def _finish(arena: Arena) -> str:
    return f"{arena.finish():.1f} s to the end"


def repeated(scenarios: Sequence[Scenario], for_s: float) -> Iterator[Scenario]:
    """All of them, and then one after another again until the time is over."""
    ends = time.monotonic() + for_s
    yield from scenarios
    yield from itertools.takewhile(lambda _: time.monotonic() < ends, itertools.cycle(scenarios))


def run_scenarios(
    scenarios: Sequence[Scenario], server: Server, redis: Redis | None, folder: Path, seed: int, for_s: float = 0
) -> Iterator[Row]:
    """Run scenarios that share an arena, and at the end see that all was done.

    Args:
        scenarios: all of the same :attr:`Scenario.arena`.
        redis: the allocator, or ``None`` for MySQL's.
        for_s: seconds for which they are repeated; each is run at least once.
    """
    first = scenarios[0]
    chance = random.Random(f"{seed} {server.flavor} {first.name}")
    allocator = "redis" if redis else "mysql"
    options: dict[str, Any] = {"allocator": allocator, "chance": chance}
    options |= {"settings": first.settings, "topic": first.topic}
    with opened(first.site, server, redis, folder, **options) as arena:
        show = Show(arena, allocator)
        arena.start()
        for scenario in repeated(scenarios, for_s):
            arena.fix()
            yield show.row(scenario)
        arena.goes_on()
        yield show.row(Scenario("all is done", _finish, dead=first.dead), settled=True)
