"""Where a soak happens: a chaos arena whose first worker and first producer are never hit, so that they grow old."""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

from emsworker.chaos import CheckWindow, Rules
from emsworker.chaos.history import Sent
from emsworker.chaos.window import Effects
from emsworker.store.engine.database import Database
from tests.support.looker import Looker
from tests.support.worker import children_of
from verification.chaos.arena import Arena
from verification.soak.series import Series

_ROLL_BYTES = 4 << 20
_CHUNK = 500


class SoakArena(Arena):
    """An arena under a constant load.

    Attributes:
        rate: messages in a second, of both producers together; body_bytes: how large a body is.
    """

    rate, body_bytes = 10.0, 500

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spared = 1
        self.environ |= {"EMS_TEST_ROLL_BYTES": str(_ROLL_BYTES), "SOAK_URL": self.url}

    def start_producer(self, pause_s: float = 0.0) -> Any:
        """One more producer of half the load; constant, so there is no pause to be named."""
        return self.spawn_producer(
            "verification.soak.producer", self.chance.randrange(10**6), self.rate / 2, self.body_bytes
        )

    def start_workers(self) -> None:
        """Two workers, ready."""
        for worker in [self.start_worker() for _ in range(2)]:
            worker.wait_ready()


class Cash(Effects):
    """The effects of the transactional group. Those that are settled are deleted, by their keys, so that no handler waits."""

    def __init__(self, looker: Looker) -> None:
        self._looker = looker
        self._ids: dict[str, list[int]] = {}

    def read(self) -> dict[str, Counter[str]]:
        """By group and message."""
        self._ids = {}
        for number, uid in self._looker.rows("SELECT id, uid FROM cash"):
            self._ids.setdefault(uid, []).append(number)
        return {"cash": Counter({uid: len(numbers) for uid, numbers in self._ids.items()})}

    def forget(self, uids: Collection[str]) -> None:
        """Delete theirs."""
        numbers = [number for uid in uids for number in self._ids.pop(uid, ())]
        for place in range(0, len(numbers), _CHUNK):
            self._looker.rows("DELETE FROM cash WHERE id IN %s", numbers[place : place + _CHUNK])


class Latency:
    """From send to run: what the history tells, in spans of some seconds.

    Args:
        span_s: how long a span is.
    """

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._open: dict[tuple[str, int], list[float]] = {}
        self.series: dict[str, Series] = {}

    def add(self, sent: Sent, group: str, at: float) -> None:
        """A group has begun with a message."""
        if sent.partition is not None:  # what is delayed begins late
            self._open.setdefault((group, int(at / self._span_s)), []).append((at - sent.at) * 1000)

    def close(self) -> None:
        """Make samples of what is there: medians and 99th percentiles, in ms."""
        for group, span in sorted(self._open):
            spans = sorted(self._open[group, span])
            quantiles = {"median": spans[len(spans) // 2], "99%": spans[len(spans) * 99 // 100]}
            for quantile, value in quantiles.items():
                name = f"run latency {group}, {quantile}"
                self.series.setdefault(name, Series(name)).add((span + 0.5) * self._span_s, value)
        self._open.clear()


def window(arena: SoakArena, latency: Latency, linger_s: float) -> CheckWindow:
    """The checker of an arena's history."""
    rules = Rules(bound_s=2.0, healing_s=min(20.0, linger_s), client_grace_s=15.0)
    return CheckWindow(
        Database(arena.url),
        arena.folder / "history",
        rules,
        linger_s=linger_s,
        effects=Cash(arena.looker),
        on_begin=latency.add,
        prune=True,
    )


def iter_roles(arena: SoakArena) -> Iterator[tuple[str, list[int]]]:
    """The processes of each role, the spared ones first."""
    spared, others = arena.workers[: arena.spared], arena.victims()
    yield "supervisor", [one.pid for one in spared]
    yield "worker", [child for one in spared for child in children_of(one.pid)]
    yield "producer", [one.pid for one in arena.producers[:1]]
    yield "hit supervisor", [one.pid for one in others]
    yield "hit worker", [child for one in others for child in children_of(one.pid)]
    yield "hit producer", [one.pid for one in arena.producers[1:]]
    yield "server", [pid for pid in [arena.server.pid] if pid]
