"""Flows under kill -9, freezes past the lease and cut connections: each effect once, each flow to its end.

``EMS_CHAOS_FLOWS=10000 ./dev verify verification/chaos/test_flows.py`` does it until so many flows were started.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Timer
from typing import Any

import pymysql
import pytest

from emsworker.core.process.clock import ticks
from emsworker.flows import FlowHandle
from emsworker.flows.errors import FlowEnded
from emsworker.flows.extension import EXTENSION
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.cluster.conftest import On
from tests.process.stream import Stream, open_stream
from tests.support.clusters import Cluster
from tests.support.looker import Looker
from tests.support.proxy import Cut, proxied
from tests.support.waiting import until
from tests.support.worker import Program, kill
from verification.chaos import flow_app as flows

pytestmark = [pytest.mark.few, pytest.mark.chaos]

_APP = "verification.chaos.flow_app:app"
_SECONDS, _FLOWS = 40, int(os.environ.get("EMS_CHAOS_FLOWS", "0"))
_MIX = ("steps", "steps", "nested", "nested", "child", "signals", "signals", "sleeps", "undoing", "undoing")


class Chaos:
    """Workers that are broken, and flows that go on all the same.

    Args:
        stream: where.
        url: of the stream, for the workers.
        cut: cuts a connection; without it none is cut.
    """

    def __init__(self, stream: Stream, url: str, seed: int, cut: Callable[[random.Random], None] | None = None) -> None:
        self._stream, self._url = stream, url
        self._chance = random.Random(seed)
        self._breaks: dict[str, Callable[[], None]] = {
            "child": self._kill_child,
            "freeze": self._freeze,
            "worker": self._kill_worker,
        }
        if cut is not None:
            self._breaks |= {"cut": partial(cut, self._chance), "another cut": partial(cut, self._chance)}
        self._workers = [self._worker() for _ in range(2)]
        self._frozen: dict[int, Timer] = {}
        self._pending: list[tuple[str, int]] = []
        self.handles: dict[int, tuple[str, FlowHandle[object]]] = {}
        self.done: Counter[str] = Counter()

    def _worker(self) -> Program:
        settings = {"url": self._url, "stop_timeout_s": 5}
        return self._stream.start("worker", settings, app=_APP, processes=2, threads=2)

    def start_flow(self, name: str) -> None:
        """Start a flow; the signals that it waits for are given at any time, before it waits or after."""
        n = (len(self.handles) + 1) * flows.SPAN
        if name in ("large", "nested"):
            handle = getattr(flows, name)(n).apply_async(id=f"flow-{n}")
        else:
            handle = getattr(flows, name).start(*((n, 2) if name == "child" else (n,)), id=f"flow-{n}")
        self.handles[n] = name, handle
        if name == "signals":
            self._pending += [(f"flow-{n}", place) for place in range(flows.SIGNALS)]

    def give_signals(self, most: int) -> None:
        """Give some of the signals that were not given yet, in any order."""
        for _ in range(min(most, len(self._pending))):
            key, place = self._pending.pop(self._chance.randrange(len(self._pending)))
            try:
                flows.app.signal(key, f"signal {place}", place)
            except FlowEnded as error:
                raise AssertionError(f"{key} has ended without signal {place}") from error

    def break_something(self) -> None:
        """Break one thing."""
        one = self._chance.choice(list(self._breaks))
        self.done[one] += 1
        self._breaks[one]()

    def _kill_child(self) -> None:
        if pids := self._pids():
            kill(self._chance.choice(pids), signal.SIGKILL)

    def _kill_worker(self) -> None:
        place = self._chance.randrange(len(self._workers))
        self._workers[place].kill_all()
        self._workers[place] = self._worker()

    def _freeze(self) -> None:
        if pids := self._pids():
            pid = self._chance.choice(pids)
            kill(pid, signal.SIGSTOP)
            # Past its lease; by a thread, because what this one does may wait for a row that the frozen process holds.
            self._frozen[pid] = Timer(3.0, self._thaw, [pid])
            self._frozen[pid].start()

    def _thaw(self, pid: int) -> None:
        kill(pid, signal.SIGCONT)
        del self._frozen[pid]

    def _pids(self) -> list[int]:
        return [pid for worker in self._workers for pid in worker.children() if pid not in self._frozen]

    def go_on(self, seconds: float, flows: int = 0) -> None:
        """Start flows and break things, for some time and until there are so many."""
        chance, ends_at = self._chance, ticks() + seconds
        self.start_flow("fan")
        self.start_flow("large")
        most = 10 if flows else 1  # at once
        while ticks() < ends_at or len(self.handles) < flows:
            for _ in range(chance.randint(1, most)):
                self.start_flow(chance.choice(_MIX))
            self.give_signals(chance.randint(0, 3 * most))
            if chance.random() < 0.4:
                self.break_something()
            pause = ticks() + chance.uniform(0.05, 0.6)
            until(lambda pause=pause: ticks() >= pause, 10, "a random moment")  # type: ignore[misc]

    def end(self) -> None:
        """Break nothing any more, and wait for the end of all flows."""
        for timer in list(self._frozen.values()):
            timer.join()
        self.give_signals(len(self._pending))
        until(
            lambda: not self.open_flows(),
            240 + len(self.handles) / 5,
            f"all flows end; {self.open_flows()}; log:\n{self._stream.logs()}",
        )

    def open_flows(self) -> list[tuple[object, ...]]:
        """Some of the flows that have not ended: this process is also the way of every connection."""
        return self._stream.rows("SELECT `key`, name, state, waits FROM ems_flow WHERE ended_at IS NULL LIMIT 20")


@contextmanager
def _app_at(url: str) -> Iterator[None]:
    before = flows.app.settings.url
    flows.app.reconfigure(url=url)
    try:
        yield
    finally:
        flows.app.close()
        flows.app.reconfigure(url=before)


def test_each_effect_once_and_each_flow_to_its_end(server: LocalDatabase, tmp_path: Path) -> None:
    with open_stream(server, tmp_path) as stream, proxied(stream.url) as (proxy, url), _app_at(stream.url):
        with Database(stream.url).session() as session:
            migrate(session, [EXTENSION])

        def cut(chance: random.Random) -> None:
            marker = chance.choice((b"", b"COMMIT", b"ems_flow_step", b"ems_flow_end", b"ems_flow SET"))
            proxy.arm(marker, chance.choice((Cut.BEFORE, Cut.AFTER)))

        chaos = Chaos(stream, url, 1, cut)
        chaos.go_on(_SECONDS, _FLOWS)
        proxy.disarm()
        chaos.end()
        print(f"{len(chaos.handles)} flows; {dict(chaos.done)}; {proxy.cuts} cuts")
        _check(stream, chaos, 11)


class _OfPrimary(Looker):
    """Looks at the present primary of a group."""

    def __init__(self, group: Cluster) -> None:
        super().__init__(group.url)
        self._group = group

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a query, at the next primary if this one is gone."""
        while True:
            primary = until(lambda: self._group.primary() + 1, 90, "there is a primary", 0.1) - 1
            self.url = self._group.url_of(primary)
            try:
                return super().rows(statement, *args)
            except pymysql.err.OperationalError:
                if self._group.nodes[primary].answers:
                    raise


class _OnGroup(Stream):
    """A stream on a group of servers."""

    def __init__(self, on: On, folder: Path) -> None:
        super().__init__(on.cluster.nodes[0], on.url, folder)
        self._looker = _OfPrimary(on.cluster)


@pytest.mark.xdist_group("group")
def test_flows_outlive_the_primary_of_a_group(on_group: On, tmp_path: Path) -> None:
    group = on_group.cluster
    with Database(on_group.url).session() as session:
        migrate(session, [EXTENSION])
    stream = _OnGroup(on_group, tmp_path)
    stream.run("CREATE TABLE effect (id INT PRIMARY KEY AUTO_INCREMENT, n INT NOT NULL, pid INT NOT NULL, KEY (n))")
    with closing(stream), _app_at(on_group.url):
        flows.app.reconfigure(publish_timeout_s=90)
        chaos = Chaos(stream, on_group.url, 2)
        chaos.go_on(_SECONDS / 4)
        first = group.primary()
        group.nodes[first].kill()
        chaos.go_on(_SECONDS / 2, _FLOWS)
        group.rejoin(first)
        chaos.end()
        print(f"{len(chaos.handles)} flows; {dict(chaos.done)}; primary {first}, then {group.primary()}")
        _check(stream, chaos, 3)


def _check(stream: Stream, chaos: Chaos, breaks: int) -> None:
    effects: dict[int, list[int]] = {}
    for (one,) in stream.rows("SELECT n FROM effect ORDER BY id"):
        effects.setdefault(one // flows.SPAN * flows.SPAN, []).append(one)
    for n, (name, handle) in chaos.handles.items():
        assert handle.state == ("failed" if name == "undoing" else "done"), f"{name} {handle.id}: {handle.state}"
        mine = effects.pop(n, [])
        assert sorted(mine) == sorted(flows.expected(name, n)), f"{name} {handle.id}: each transaction once"
        undone = [one for one in mine if name == "undoing" and one >= n + flows.UNDO]
        assert undone == sorted(undone, reverse=True), f"{handle.id} was undone in another order"
    assert effects == {}, "effects of no flow"
    assert stream.rows("SELECT * FROM ems_flow_step WHERE pending > 0") == []
    assert sum(chaos.done.values()) >= breaks, "something was broken"
