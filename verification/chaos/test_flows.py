"""Flows under kill -9, freezes past the lease and cut connections: each effect once, each flow to its end.

``EMS_CHAOS_FLOWS=10000 ./dev verify verification/chaos/test_flows.py`` does it until so many flows were started.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import pytest

from emsworker.core.process.clock import ticks
from emsworker.flows import FlowHandle
from emsworker.flows.errors import FlowEnded
from emsworker.flows.extension import EXTENSION
from emsworker.local import LocalDatabase
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate
from tests.process.stream import Stream, open_stream
from tests.support.proxy import Cut, Proxy, proxied
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
        url: of the stream behind a proxy.
    """

    def __init__(self, stream: Stream, proxy: Proxy, url: str, seed: int) -> None:
        self._stream, self._proxy, self._url = stream, proxy, url
        self._chance = random.Random(seed)
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
        breaks: list[Callable[[], None]] = [self._kill_child, self._freeze, self._cut, self._cut, self._kill_worker]
        one = self._chance.choice(breaks)
        self.done[one.__name__] += 1
        one()

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

    def _cut(self) -> None:
        marker = self._chance.choice((b"", b"COMMIT", b"ems_flow_step", b"ems_flow_end", b"ems_flow SET"))
        self._proxy.arm(marker, self._chance.choice((Cut.BEFORE, Cut.AFTER)))

    def _thaw(self, pid: int) -> None:
        kill(pid, signal.SIGCONT)
        del self._frozen[pid]

    def _pids(self) -> list[int]:
        return [pid for worker in self._workers for pid in worker.children() if pid not in self._frozen]

    def run(self, seconds: float, flows: int) -> None:
        """Start flows and break things, for some time and until there are so many, and wait for the end of all flows."""
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
        self._proxy.disarm()
        for timer in list(self._frozen.values()):
            timer.join()
        self.give_signals(len(self._pending))
        until(
            lambda: not self.open_flows(),
            240 + flows / 5,
            f"all flows end; {self.open_flows()}; log:\n{self._stream.logs()}",
        )

    def open_flows(self) -> list[tuple[object, ...]]:
        """Flows that have not ended."""
        return self._stream.rows("SELECT `key`, name, state, waits FROM ems_flow WHERE ended_at IS NULL")


def test_each_effect_once_and_each_flow_to_its_end(server: LocalDatabase, tmp_path: Path) -> None:
    before = flows.app.settings.url
    with open_stream(server, tmp_path) as stream, proxied(stream.url) as (proxy, url):
        with Database(stream.url).session() as session:
            migrate(session, [EXTENSION])
        flows.app.reconfigure(url=stream.url)
        try:
            chaos = Chaos(stream, proxy, url, seed=1)
            chaos.run(_SECONDS, _FLOWS)
            print(f"{len(chaos.handles)} flows; {dict(chaos.done)}; {proxy.cuts} cuts")
            _check(stream, chaos)
        finally:
            flows.app.close()
            flows.app.reconfigure(url=before)


def _check(stream: Stream, chaos: Chaos) -> None:
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
    assert sum(chaos.done.values()) > 10, "something was broken"
