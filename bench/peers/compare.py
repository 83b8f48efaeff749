"""A peer beside EMS and beside the bare limit of the peer's own server, in turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.peers.arena import Arena
from bench.peers.contest import Amount, run
from bench.peers.systems import EMS, EMS_REDIS, LIMITS, System

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class PeersSize:
    """How much is measured.

    Args:
        repeats: how often the systems take turns.
        waiting: messages that wait when the workers of a peer start.
        waiting_slow: the same for peers that need long.
        waiting_ours: the same for EMS and for the bare limits.
        ones: how many are sent one by one where there is another way.
        paced: messages whose latency is taken.
        per_s: the rate at which those are sent.
    """

    repeats: int
    waiting: int
    waiting_slow: int
    waiting_ours: int
    ones: int
    paced: int
    per_s: int


QUICK = PeersSize(1, 1_000, 500, 5_000, 300, 100, 200)
DEFAULT = PeersSize(2, 4_000, 1_500, 20_000, 1_000, 400, 200)
FULL = PeersSize(5, 20_000, 20_000, 20_000, 5_000, 3_000, 200)


@dataclass(frozen=True)
class Comparison:
    """Every repeat of every side: ``peer``, ``ems``, ``ems-redis`` (latency only) and ``limit``.

    Args:
        line: its name on the command line.
        title, durability, promise: of the peer.
        server: the server that it ran on, with its version.
        waiting: how many messages waited for it.
        limit: what the bare limit is.
        sides: figures by side and name.
    """

    line: str
    title: str
    server: str
    durability: str
    promise: str
    waiting: int
    limit: str
    sides: dict[str, Figures]

    def median(self, side: str, name: str) -> float | None:
        """The median of a side's figure, if it has it."""
        values = self.sides.get(side, {}).get(name)
        return median(values) if values else None

    def ratio(self, name: str, side: str = "peer") -> float | None:
        """EMS over another side."""
        ours, theirs = self.median("ems", name), self.median(side, name)
        return ours / theirs if ours and theirs else None

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Comparison:
        """What :func:`dataclasses.asdict` made of one."""
        return cls(**found)


def compare(arena: Arena, peer: System, size: PeersSize, tell: Callable[[str], None]) -> Comparison:
    """Run a peer, EMS and the bare limit in turns.

    Raises:
        NotRight: a message was lost, or a process failed.
        ServerMissing, ServerFailed: the peer's server or its packages are not there.
    """
    limit = LIMITS[peer.broker]
    waiting = size.waiting_slow if peer.slow else size.waiting
    waiting_limit = size.waiting_slow if limit.slow else size.waiting_ours
    turns = {
        "limit": (limit, Amount(waiting_limit, size.ones, 0, 0)),
        "peer": (peer, Amount(waiting, size.ones, size.paced, size.per_s)),
        "ems": (EMS, Amount(size.waiting_ours, size.ones, size.paced, size.per_s)),
        "ems-redis": (EMS_REDIS, Amount(2, 2, size.paced, size.per_s)),
    }
    sides: dict[str, Figures] = {side: {} for side in turns}
    for _ in range(size.repeats):
        for side, (system, amount) in turns.items():
            found = run(arena, system, amount)
            tell(f"  {system.title}: " + ", ".join(f"{name} {value:,.1f}" for name, value in found.items()))
            if side == "ems-redis":  # two messages are no throughput
                found = {name: value for name, value in found.items() if name.endswith(" ms")}
            for name, value in found.items():
                sides[side].setdefault(name, []).append(value)
    version = arena.version_of(peer)
    return Comparison(peer.line, peer.title, version, peer.durability, peer.promise, waiting, limit.title, sides)
