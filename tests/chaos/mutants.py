"""``./dev chaos --mutants``: the code is broken on purpose, and the checker must notice.

Each mutant is a copy of the package with one protocol spoiled. The same scenarios that find nothing wrong with the real
code are run with it, until the checker has found what it must find, or three times in vain.
"""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emsworker.chaos import Kind
from emsworker.local import Database as Server
from emsworker.local import Redis
from tests.chaos import scenarios
from tests.chaos.arena import Arena, opened
from tests.support.worker import ROOT

_TRIES, _SETTLE_S = 3, 15.0


@dataclass(frozen=True)
class Mutant:
    """A protocol that is spoiled.

    Args:
        edits: file below ``emsworker``, the text that must be there once, and what it becomes.
        bring_about: the faults under which it shows.
        wanted: any of these must be found.
    """

    name: str
    edits: Sequence[tuple[str, str, str]]
    bring_about: Callable[[Arena], None]
    wanted: frozenset[Kind]
    redis: bool = False
    networked: bool = False
    topic: dict[str, Any] | None = None


@dataclass(frozen=True)
class Caught:
    """What became of a mutant: what was found, how often, and in which try; nothing if it survived."""

    name: str
    server: str
    wanted: str
    found: dict[str, int]
    tries: int
    took_s: float

    @property
    def good(self) -> bool:
        """Whether it was caught."""
        return bool(self.found)


def _calm(arena: Arena) -> None:
    arena.goes_on(80)


MUTANTS = [
    Mutant(
        "no fence: whoever finishes a claim may",
        [("store/progress.py", "    packet.assert_one_matched()\n    by_key", "    by_key")],
        partial(scenarios.pause_a_child, times=4),
        frozenset({Kind.EFFECT, Kind.NOT_THE_OWNER}),
    ),
    Mutant(
        "a cursor passes holes",
        [("store/claims.sql", "WHERE r.`offset` = @ems_lo + r.place - 1 AND (", "WHERE (")],
        scenarios.slow_network,  # a long way between an offset from Redis and its row
        frozenset({Kind.LOST, Kind.HOLE}),
        redis=True,
        networked=True,
    ),
    Mutant(
        "a message is done before it runs",
        [
            (
                "runtime/executor.py",
                "            failed = self._call_plainly(work, messages, handler)\n",
                "            work.done(messages, [], [0.0] * len(messages))\n            failed = self._call_plainly(work, messages, handler)\n",
            ),
            (
                "runtime/executor.py",
                "            work.done(messages, failures, [ran_s] * len(messages), self._keeper.for_flush(rows))\n",
                "",
            ),
        ],
        partial(scenarios.kill_children, times=6),
        frozenset({Kind.LOST}),
    ),
    Mutant(
        "recovery forgets what a dead owner had not begun",
        [("store/recovery.py", "    if rest <= claim.hi:\n        care", "    if rest < 0:\n        care")],
        scenarios.kill_children,
        frozenset({Kind.LOST}),
    ),
    Mutant(
        "the cursor stays on the last offset of a claim",
        [
            (
                "store/claims.sql",
                "next_offset = @ems_hi + 1",
                "next_offset = IF(@ems_hi > @ems_lo, @ems_hi, @ems_hi + 1)",
            )
        ],
        _calm,
        frozenset({Kind.CLAIMED_TWICE}),
    ),
    Mutant(
        "an ordered partition has several owners",
        [
            ("store/ordered.py", "        packet.add(_SQL.check_owner, args)\n", ""),
            ("store/claims.sql", ") w WHERE w.busy = 0 AND (", ") w WHERE ("),
        ],
        _calm,
        frozenset({Kind.ORDER}),
    ),
    Mutant(
        "an effect is committed before the watermark",
        [
            (
                "store/progress.py",
                "    packet = session.packet()\n    add_flush(packet, progress)\n    packet.commit()\n    send_fenced(packet)\n",
                "    session.commit()\n    flush(session, progress)\n",
            )
        ],
        scenarios.kill_connections,
        frozenset({Kind.EFFECT}),
    ),
    Mutant(
        "no look at the floor",
        [("store/messages.sql", "IF(floor <= %(base)s, %(base)s, NULL)", "%(base)s")],
        scenarios.roll_redis_back,
        frozenset({Kind.LOST}),
        redis=True,
        topic={"trim_done": True},
    ),
    Mutant(
        "dead clients are not swept away",
        [("store/clients.sql", "WHERE expires_at < NOW(6)\n", "WHERE expires_at < NOW(6) - INTERVAL 1 DAY\n")],
        scenarios.kill_a_worker,
        frozenset({Kind.CLIENT_LEFT}),
    ),
]


def spoil(mutant: Mutant, folder: Path) -> Path:
    """A copy of the code with the mutation.

    Raises:
        ValueError: the text that it changes is not there, or not just once.
    """
    folder.mkdir(parents=True)
    for part in ("emsworker", "tests"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name, old, new in mutant.edits:
        path = folder / "emsworker" / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutant {mutant.name!r}: {name} has {text.count(old)} times {old!r}; write it anew")
        path.write_text(text.replace(old, new))
    return folder


def catch(mutant: Mutant, server: Server, redis: Redis | None, folder: Path, seed: int) -> Caught:
    """Run it until it is caught."""
    began, found, tries = time.monotonic(), {}, 0
    root = spoil(mutant, folder / "code")
    while not found and tries < _TRIES:
        tries += 1
        found = _try(mutant, server, redis, folder / str(tries), random.Random(f"{seed + tries} {mutant.name}"), root)
    took_s = round(time.monotonic() - began, 1)
    return Caught(mutant.name, server.flavor, " or ".join(sorted(mutant.wanted)), found, tries, took_s)


def _try(
    mutant: Mutant, server: Server, redis: Redis | None, folder: Path, chance: random.Random, root: Path
) -> dict[str, int]:
    allocator = "redis" if mutant.redis else "mysql"
    options = {"allocator": allocator, "chance": chance, "root": root, "topic": mutant.topic or {}}
    options["networked"] = mutant.networked
    with opened(server, redis if mutant.redis else None, folder, **options) as arena:  # type: ignore[arg-type]
        settled = False
        try:
            arena.start()
            mutant.bring_about(arena)
            arena.finish(_SETTLE_S)
            settled = True
        except AssertionError:
            pass  # spoiled code may as well stall; what it has done until then is judged
        counts = arena.judge(settled, client_grace_s=3).counts
    return {kind.value: counts[kind] for kind in sorted(mutant.wanted) if counts[kind]}


def line(caught: Caught) -> str:
    """A row on the terminal."""
    found = ", ".join(f"{kind} {count}" for kind, count in caught.found.items()) or f"NOT FOUND: {caught.wanted}"
    mark = "ok  " if caught.good else "BAD "
    return f"{mark}{caught.name.ljust(50)}{caught.server.ljust(9)}{found}  (try {caught.tries}, {caught.took_s:.0f} s)"


def markdown(rows: Sequence[Caught]) -> str:
    """The table for the documentation."""
    lines = ["| what is spoiled | server | found |", "| --- | --- | --- |"]
    for row in rows:
        found = ", ".join(f"{kind} ({count})" for kind, count in row.found.items()) or "**nothing**"
        lines.append(f"| {row.name} | {row.server} | {found} |")
    return "\n".join(lines)


def to_json(rows: Sequence[Caught]) -> list[dict[str, object]]:
    """For a file."""
    return [asdict(row) | {"good": row.good} for row in rows]
