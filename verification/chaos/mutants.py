"""``./dev chaos --mutants``: the code is broken on purpose, and the checker must notice.

Each mutant is a copy of the package with one protocol spoiled. The faults under which that shows are brought about,
aimed at the right moment (:mod:`verification.chaos.aimed`), until the checker has found what it must find, or three times in
vain. And
once with the code as it is: then it must find nothing.
"""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from emsworker.chaos import ChaosReport, Kind
from emsworker.local import LocalDatabase as Server
from emsworker.local import Redis
from tests.support.worker import LIBRARY, ROOT
from verification.chaos import aimed, sites
from verification.chaos.arena import Arena, opened
from verification.chaos.breaks import handlers, operators
from verification.chaos.breaks.storm import endure
from verification.chaos.breaks.uses import Cancels

_TRIES, _SETTLE_S, _SOUND_SETTLE_S = 3, 15.0, 60.0
_GRACE_S = 3.0


@dataclass(frozen=True)
class Mutant:
    """A protocol that is spoiled.

    Args:
        breaks: the promise that is gone with it.
        edits: file below ``emsworker``, the text that must be there once, and what it becomes.
        bring_about: the faults under which it shows.
        wanted: any of these must be found.
    """

    name: str
    breaks: str
    edits: Sequence[tuple[str, str, str]]
    bring_about: Callable[[Arena], object]
    wanted: frozenset[Kind]
    redis: bool = False
    topic: dict[str, Any] | None = None


@dataclass(frozen=True)
class Caught:
    """What became of a mutant: what was found, how often, and in which try; nothing if it survived.

    Attributes:
        sound: whatever was found with the code as it is.
    """

    name: str
    breaks: str
    server: str
    wanted: str
    found: dict[str, int]
    tries: int
    sound: tuple[str, ...]
    took_s: float

    @property
    def good(self) -> bool:
        """Whether it was caught, and nothing else was."""
        return bool(self.found) and not self.sound


MUTANTS = [
    Mutant(
        "no fence: whoever finishes a claim may",
        "fenced; one effect",
        [("store/groups/progress.py", "    packet.assert_one_matched()\n    by_key", "    by_key")],
        partial(aimed.pause_in_hand, group="cash"),
        frozenset({Kind.EFFECT, Kind.NOT_THE_OWNER}),
    ),
    Mutant(
        "a cursor passes holes",
        "nothing lost",
        [
            (
                "store/groups/claims.sql",
                "WHERE @ems_may = 1 AND r.`offset` = @ems_lo + r.place - 1 AND (",
                "WHERE @ems_may = 1 AND (",
            )
        ],
        aimed.distant_producers,
        frozenset({Kind.LOST, Kind.HOLE}),
        redis=True,
    ),
    Mutant(
        "a message is done before it runs",
        "at least once",
        [
            (
                "consume/claim_run.py",
                "            self.done(caller.call(self, messages, handler, began))\n",
                "            self.done([Ended(message) for message in messages])\n            caller.call(self, messages, handler, began)\n",
            ),
        ],
        partial(aimed.kill_in_hand, group="plain"),
        frozenset({Kind.LOST}),
    ),
    Mutant(
        "recovery forgets what a dead owner had not begun",
        "nothing lost",
        [("store/groups/recovery.py", "    if rest <= claim.hi:\n        values", "    if rest < 0:\n        values")],
        partial(aimed.kill_in_hand, group="plain", times=2),
        frozenset({Kind.LOST}),
    ),
    Mutant(
        "the cursor stays on the last offset of a claim",
        "one owner at a time",
        [
            (
                "store/groups/claims.sql",
                "next_offset = @ems_hi + 1",
                "next_offset = IF(@ems_hi > @ems_lo, @ems_hi, @ems_hi + 1)",
            )
        ],
        aimed.backlog,
        frozenset({Kind.CLAIMED_TWICE}),
    ),
    Mutant(
        "an ordered partition has several owners",
        "order",
        [
            (
                "store/groups/ordered.py",
                "_TAKE.lock_cursor_or_skip, _SQL.check_owner)",
                "_TAKE.lock_cursor_or_skip)",
            ),
            ("store/groups/claims.sql", ") w WHERE w.busy = 0 AND (", ") w WHERE ("),
        ],
        aimed.backlog,
        frozenset({Kind.ORDER}),
    ),
    Mutant(
        "an effect is committed before the acked offset",
        "exactly one effect",
        [
            (
                "store/groups/progress.py",
                "    packet.take_back()\n    add_flush(packet, progress)\n    packet.commit_lent()\n    send_fenced(packet)\n",
                "    packet.take_back()\n    packet.commit_lent()\n    packet.send()\n    flush(session, progress)\n",
            )
        ],
        aimed.kill_between_commits,
        frozenset({Kind.EFFECT}),
    ),
    Mutant(
        "no look at the log start offset",
        "nothing lost, Redis rolled back",
        [("store/stream/messages.sql", "IF(log_start <= %(base)s AND closed", "IF(closed")],
        aimed.roll_redis_below_the_log_start,
        frozenset({Kind.LOST}),
        redis=True,
        topic={"keep_done_s": 0},
    ),
    Mutant(
        "dead clients are not swept away",
        "flat cost: dead clients go",
        [("store/cluster/clients.sql", "WHERE expires_at < NOW(6)\n", "WHERE expires_at < NOW(6) - INTERVAL 1 DAY\n")],
        partial(aimed.kill_a_worker_for_good, grace_s=_GRACE_S + 1),
        frozenset({Kind.CLIENT_LEFT}),
    ),
]


MUTANTS += [
    Mutant(
        "a rollback by the server is not noticed",
        "exactly one effect",
        [
            ("store/engine/connection.py", "            if rolls_back(error):\n", "            if False:\n"),
            ("store/engine/session.sql", "RELEASE SAVEPOINT ems_transaction\n", "DO 0\n"),
        ],
        partial(handlers.misbehave, topics=("swallow",), count=60),
        frozenset({Kind.EFFECT}),
    ),
    Mutant(
        "rows that a limit of the server cuts off are not missed",
        "nothing lost",
        [
            ("store/engine/connection.sql", "  SESSION sql_select_limit = 18446744073709551615,", "  "),
            ("store/groups/claims.py", "        if wanted != len(rows):\n", "        if wanted < len(rows):\n"),
        ],
        aimed.limit_rows,
        frozenset({Kind.LOST}),
    ),
    Mutant(
        "a delayed message is written down under whatever id its topic had",
        "nothing lost",
        [
            (
                "store/stream/outbox.py",
                "    guarded = topic_id_text(database, topic_id)\n",
                "    guarded = str(topic_id)\n",
            )
        ],
        partial(operators.create_again, times=2),
        frozenset({Kind.LOST}),
    ),
]


def _cancel_some(arena: Arena) -> None:
    endure(arena, [Cancels(arena)], 2)


MUTANTS += [
    Mutant(
        "the bodies of cancelled messages are read",
        "nothing begins after a confirmed cancel",
        [
            (
                "store/groups/claims.sql",
                "kind = 'message' ORDER BY `offset`\n\n-- name: read_wanted",
                "kind <> 'tombstone' ORDER BY `offset`\n\n-- name: read_wanted",
            ),
            (
                "store/groups/claims.sql",
                "@ems_hi AND kind = 'message'\n  AND",
                "@ems_hi AND kind <> 'tombstone'\n  AND",
            ),
        ],
        _cancel_some,
        frozenset({Kind.CANCELLED}),
    ),
]


def spoil(mutant: Mutant, folder: Path) -> Path:
    """A copy of the code with the mutation.

    Raises:
        ValueError: the text that it changes is not there, or not just once.
    """
    folder.mkdir(parents=True)
    for part in (LIBRARY, ROOT / "tests", ROOT / "verification"):
        shutil.copytree(part, folder / part.name, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name, old, new in mutant.edits:
        path = folder / "emsworker" / name
        text = path.read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutant {mutant.name!r}: {name} has {text.count(old)} times {old!r}; write it anew")
        path.write_text(text.replace(old, new))
    return folder


def catch(mutant: Mutant, server: Server, redis: Redis | None, folder: Path, seed: int) -> Caught:
    """Run it until it is caught, and the code as it is once."""
    began, tries = time.monotonic(), 0
    found: dict[str, int] = {}
    root = spoil(mutant, folder / "code")
    while not found and tries < _TRIES:
        tries += 1
        chance = random.Random(f"{seed + tries} {mutant.name}")
        report = _try(mutant, server, redis, folder / str(tries), chance, root)
        found = {kind.value: report.counts[kind] for kind in sorted(mutant.wanted) if report.counts[kind]}
    wrong = _try_as_it_is(mutant, server, redis, folder / "sound", random.Random(f"{seed + 1} {mutant.name}"))
    took_s = round(time.monotonic() - began, 1)
    wanted = " or ".join(sorted(mutant.wanted))
    return Caught(mutant.name, mutant.breaks, server.flavor, wanted, found, tries, wrong, took_s)


def _try_as_it_is(
    mutant: Mutant, server: Server, redis: Redis | None, folder: Path, chance: random.Random
) -> tuple[str, ...]:
    """What is wrong with the code as it is."""
    try:
        return tuple(map(str, _try(mutant, server, redis, folder, chance, ROOT).findings))
    except AssertionError as error:
        return (f"it did not come to its end: {error}",)


def _try(
    mutant: Mutant, server: Server, redis: Redis | None, folder: Path, chance: random.Random, root: Path
) -> ChaosReport:
    allocator = "redis" if mutant.redis else "mysql"
    options: dict[str, Any] = {"allocator": allocator, "chance": chance, "root": root, "topic": mutant.topic or {}}
    with opened(sites.alone, server, redis if mutant.redis else None, folder, **options) as arena:
        settled = False
        try:
            arena.start()
            mutant.bring_about(arena)
            arena.finish(_SOUND_SETTLE_S if root == ROOT else _SETTLE_S)
            settled = True
        except AssertionError:
            if root == ROOT:
                raise
            # Spoiled code may as well stall; what it has done until then is judged.
        arena.note_lost_leases()
        report: ChaosReport = arena.judge(settled, client_grace_s=_GRACE_S)
        return report


def line(caught: Caught) -> str:
    """A row on the terminal."""
    found = _told(caught.found) or f"NOT FOUND: {caught.wanted}"
    mark = "ok  " if caught.good else "BAD "
    text = f"{mark}{caught.name.ljust(50)}{caught.server.ljust(9)}{found}  (run {caught.tries}, {caught.took_s:.0f} s)"
    return "\n  without the mutation: ".join([text, *caught.sound])


def markdown(rows: Sequence[Caught]) -> str:
    """The table for the documentation."""
    titles = ("what is spoiled", "what that breaks", "server", "found", "in run", "found in the code as it is")
    lines = [f"| {' | '.join(titles)} |", f"| {' | '.join('---' for _ in titles)} |"]
    for row in rows:
        found, sound = _told(row.found) or "**nothing**", len(row.sound) or "nothing"
        lines.append(f"| {row.name} | {row.breaks} | {row.server} | {found} | {row.tries} | {sound} |")
    return "\n".join(lines)


def _told(found: dict[str, int]) -> str:
    return ", ".join(f"{kind} ({count})" for kind, count in found.items())


def to_json(rows: Sequence[Caught]) -> list[dict[str, object]]:
    """For a file."""
    return [asdict(row) | {"good": row.good} for row in rows]
