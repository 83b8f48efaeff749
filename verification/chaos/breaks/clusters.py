"""Nodes of a cluster die, freeze and come back, and writers are spread over them; no process of ours ends."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from emsworker.chaos import read_history
from tests.support.clusters import Cluster
from tests.support.machine import machine_s
from tests.support.waiting import until
from verification.chaos.arena import Arena

_ELECTION_S = 120.0
BEYOND_S = 5.0
_FROZEN_S = 12.0
_SPREAD_S = 20.0


def _cluster(arena: Arena) -> Cluster:
    assert arena.site.cluster
    return arena.site.cluster


def _turn(arena: Arena, number: int) -> None:
    """The harness looks at this node from now on."""
    cluster = _cluster(arena)
    arena.site.server, arena.site.url = cluster.nodes[number], cluster.url_of(number)
    arena.looker.close()


def _turn_to_primary(arena: Arena) -> int:
    cluster = _cluster(arena)
    until(lambda: cluster.primary() >= 0, _ELECTION_S, "there is a primary", 0.1)
    number = cluster.primary()
    _turn(arena, number)
    return number


def _check_processes(arena: Arena) -> None:
    for worker in arena.workers:
        if worker.process.poll() is None:
            assert worker.text().count(" started child ") == 1, f"a child was replaced:\n{worker.text()[-3000:]}"
    ended = [worker.process.returncode for worker in arena.workers if worker.process.poll() not in (None, 0)]
    assert not ended, f"workers ended with {ended}"
    assert all(producer.poll() in (None, 0) for producer in arena.producers), arena.tail()


def _messages(arena: Arena) -> int:
    return int(arena.looker.rows("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")[0][0])


def _wait_going_on(arena: Arena) -> None:
    """Wait until messages are sent, and handled, at the node that is looked at."""
    sent, effects = _messages(arena), arena.effects_count()
    until(lambda: _messages(arena) > sent and arena.effects_count() > effects, 60, f"all go on; {arena.tail()}")


@dataclass(frozen=True)
class _Stall:
    """The longest time without a confirmed send, or without the end of a handler, since the cluster went on."""

    began: float
    ended: float

    def __str__(self) -> str:
        return f"{self.ended - self.began:.1f} s"

    @property
    def machine_s(self) -> float:
        """How long it took, in seconds of the machine."""
        return machine_s(self.ended) - machine_s(self.began)

    def check(self) -> None:
        """Raise AssertionError if it took too long."""
        assert self.machine_s < BEYOND_S, f"nothing was sent or handled for {self}, in which the cluster could work"


def _stall_since(arena: Arena, moment: float) -> _Stall:
    """The stall since a moment of ``time.monotonic()``, as it is known from the history."""
    history = read_history(arena.folder / "history")
    sends = (send.confirmed_at for send in history.sent.values())
    runs = (run.ended for run in history.runs)
    stalls = []
    for moments in (sends, runs):
        known = sorted({moment, time.monotonic(), *(at for at in moments if at is not None and at > moment)})
        stalls += [_Stall(*pair) for pair in itertools.pairwise(known)]
    return max(stalls, key=lambda stall: stall.machine_s)


def _replace(arena: Arena) -> None:
    """New processes, which know nothing of the failover; the old ones go on beside them for now."""
    arena.start_worker().wait_ready()
    arena.start_producer()
    arena.goes_on()
    arena.producers.pop(0).terminate()


def _come_back(arena: Arena, number: int) -> None:
    cluster = _cluster(arena)
    cluster.nodes[number].thaw()
    cluster.settle(number)
    cluster.rejoin(number)
    cluster.wait_whole()
    _turn_to_primary(arena)
    arena.goes_on()
    _check_processes(arena)


def _hit(arena: Arena, number: int, out: Callable[[], bool], *, freeze: bool, replace: bool) -> str:
    """Kill or freeze a node, and bring it back; return how long the others took to go on, and EMS after them.

    Args:
        out: returns whether the others go on without it.
        replace: start new processes, which know nothing of the fault, before it comes back.
    """
    node = _cluster(arena).nodes[number]
    with arena.fault("failover"):
        began = time.monotonic()
        (node.freeze if freeze else node.kill)()
        until(out, _ELECTION_S, "the others go on without it", 0.1)
        out_at = time.monotonic()
        _turn_to_primary(arena)
        _wait_going_on(arena)
        if replace:
            _replace(arena)
        stall, back_at = _stall_since(arena, out_at), time.monotonic()
        _come_back(arena, number)
        coming_back = _stall_since(arena, back_at)
    stall.check()
    return f"{out_at - began:.1f} s + {stall}, {coming_back} as it came back"


def _hit_primary(arena: Arena, *, freeze: bool) -> str:
    cluster = _cluster(arena)
    first = _turn_to_primary(arena)
    arena.goes_on(40)
    return _hit(arena, first, lambda: cluster.primary() not in (-1, first), freeze=freeze, replace=True)


def kill_the_primary(arena: Arena) -> str:
    """Kill -9; new processes start after the failover; it comes back."""
    return _hit_primary(arena, freeze=False)


def freeze_the_primary(arena: Arena) -> str:
    """SIGSTOP: its connections stay open, and nobody answers."""
    return _hit_primary(arena, freeze=True)


def _hit_another(arena: Arena, *, freeze: bool) -> str:
    cluster = _cluster(arena)
    primary = _turn_to_primary(arena)
    other = next(number for number in reversed(range(3)) if number != primary)
    arena.goes_on(20)
    return _hit(arena, other, lambda: other not in cluster.members(), freeze=freeze, replace=False)


def kill_another(arena: Arena) -> str:
    """Kill -9 of a node that nobody writes to."""
    return _hit_another(arena, freeze=False)


def freeze_another(arena: Arena) -> str:
    """SIGSTOP of a node that nobody writes to: the others wait for it until they go on without."""
    return _hit_another(arena, freeze=True)


def freeze_two(arena: Arena) -> str:
    """No majority is left, so that nothing can be committed; and then there is one again."""
    cluster = _cluster(arena)
    primary = _turn_to_primary(arena)
    others = [number for number in range(3) if number != primary]
    with arena.fault("failover"):
        for number in others:
            cluster.nodes[number].freeze()
        time.sleep(_FROZEN_S)
        for number in others:
            cluster.nodes[number].thaw()
        thawed = time.monotonic()
        # Those that were frozen still see what they saw before, the third one knows that it was alone.
        until(lambda: cluster.sees_majority(primary), _ELECTION_S, "there is a majority again", 0.1)
        again = time.monotonic()
        for number in others:
            cluster.settle(number)
            cluster.rejoin(number)
        cluster.wait_whole()
        _turn_to_primary(arena)
        _wait_going_on(arena)
        stall = _stall_since(arena, again)
    _check_processes(arena)
    stall.check()
    return f"{again - thawed:.1f} s + {stall}"


def start_a_former_member(arena: Arena) -> str:
    """A member that was killed is started and does not join: it is writable, and named first to new processes."""
    cluster = _cluster(arena)
    away = _turn_to_primary(arena)
    with arena.fault("failover"):
        cluster.nodes[away].kill()
        until(lambda: cluster.primary() not in (-1, away), _ELECTION_S, "there is another primary", 0.1)
        _turn_to_primary(arena)
        cluster.start_alone(away)
        count = "SELECT COUNT(*) n FROM ems.ems_message WHERE `offset` > 0"
        before = cluster.nodes[away].ask(count)[0]["n"]
        told = arena.looker.url
        if arena.site.router is None:  # which leads to it as well
            arena.looker.url = cluster.url_of(away, *(n for n in range(3) if n != away))
        _replace(arena)
        arena.looker.url = told
        assert cluster.nodes[away].ask(count)[0]["n"] == before, "somebody has written to it"
        _come_back(arena, away)
    return "nothing written to it"


def spread_over_primaries(arena: Arena) -> str:
    """Every member of a replication group is a primary for a while."""
    cluster = _cluster(arena)
    first = cluster.nodes[_turn_to_primary(arena)]
    with arena.fault("failover"):
        first.ask("SELECT group_replication_switch_to_multi_primary_mode()")
        note = spread_writers(arena)
        uuid = first.ask("SELECT @@server_uuid uuid")[0]["uuid"]
        first.ask(f"SELECT group_replication_switch_to_single_primary_mode('{uuid}')")
        cluster.wait_whole()
        _turn_to_primary(arena)
        arena.goes_on()
    _check_processes(arena)
    return note


def spread_writers(arena: Arena) -> str:
    """Workers and producers that are told the nodes in another order write to other nodes, and meet in conflicts."""
    cluster = _cluster(arena)
    _turn_to_primary(arena)
    told = arena.looker.url
    arena.goes_on()
    with arena.fault("failover"):
        for order in ((1, 2, 0), (2, 0, 1)):
            arena.looker.url = cluster.url_of(*order)
            arena.start_worker().wait_ready()
            arena.start_producer(0.05)
        arena.looker.url = told
        before, began = arena.effects_count(), time.monotonic()
        until(lambda: time.monotonic() > began + _SPREAD_S and arena.effects_count() > before, 90, "they write", 0.5)
        _check_processes(arena)
        for _ in range(2):
            arena.producers.pop().terminate()
    return "3 nodes written to"
