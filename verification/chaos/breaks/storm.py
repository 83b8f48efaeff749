"""Workers of the daily app under everything that can hit them, while users go on."""

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.support.waiting import until
from tests.support.worker import Program, children_of, kill
from verification.chaos.arena import Arena
from verification.chaos.breaks.database import cut_connections
from verification.chaos.breaks.processes import BEYOND_LEASE_S, leader_of
from verification.chaos.breaks.uses import Use
from verification.chaos.side import load, wait_done

_APP = "verification.chaos.daily_app:app"
_BEYOND_BEAT_S = 2.5
_ON_S = 60.0
Tags = tuple[str, ...]


class Storm:
    """Workers that are hit one after another; those that are lost are replaced, by others with other tags.

    Args:
        arena: where; its own workers may lead the beat, and are hit for that.
        topics: that they run.
        tags: of the workers at first and at the end, one worker each; in between they come and go.
    """

    def __init__(self, arena: Arena, topics: Sequence[str], tags: Sequence[Tags]) -> None:
        self._arena, self._topics, self._tags = arena, topics, tags
        self.workers: dict[Program, Tags] = {}
        self._hits: list[Callable[[], None]] = []

    def start(self, tags: Tags) -> None:
        """One more worker."""
        environ = {"EMS_TEST_TAGS": ",".join(tags)}
        self.workers[self._arena.start_worker(_APP, self._topics, environ, tags).wait_ready()] = tags

    def hit(self) -> None:
        """Hit something: each fault once, in any order, before one comes again."""
        if not self._hits:
            hits = [
                self.kill_a_child,
                self.kill_a_worker,
                self.kill_the_leader,
                self.freeze_a_child,
                self.freeze_the_leader,
                self.cut,
                self.kill_the_server,
            ]
            self._hits = self._arena.chance.sample(hits, len(hits))
        self._hits.pop()()

    def calm(self) -> None:
        """Have a worker for each of the tags again."""
        missing = list(self._tags)
        for tags in self.workers.values():
            if tags in missing:
                missing.remove(tags)
        for tags in missing:
            self.start(tags)

    def stop(self) -> None:
        """Stop them all, well."""
        for worker in self.workers:
            assert worker.stop() == 0, worker.text()[-3000:]

    def kill_a_child(self) -> None:
        """Kill -9, whatever it has in hand."""
        self._arena.kill([self._child()])

    def kill_a_worker(self) -> None:
        """Kill -9 of a supervisor and its children at once; another one comes, with any tags."""
        self._lose(self._arena.chance.choice(list(self.workers)))

    def kill_the_leader(self) -> None:
        """Kill -9 of the worker whose beat leads."""
        self._lose(leader_of(self._arena))

    def freeze_a_child(self) -> None:
        """Stop it for longer than its lease."""
        pid, began = self._child(), time.monotonic()
        kill(pid, signal.SIGSTOP)
        time.sleep(BEYOND_LEASE_S)
        kill(pid, signal.SIGCONT)
        self._arena.note("pause", began, pid)

    def freeze_the_leader(self) -> None:
        """Stop the supervisor whose beat leads until another one does."""
        leader = leader_of(self._arena)
        leader.send(signal.SIGSTOP)
        try:
            until(lambda: leader_of(self._arena) is not leader, _ON_S, "another beat leads")
        finally:
            leader.send(signal.SIGCONT)

    def cut(self) -> None:
        """Cut connections, above all those in COMMIT."""
        cut_connections(self._arena, 1.0)

    def kill_the_server(self) -> None:
        """Kill -9 of the server, which comes back."""
        with self._arena.fault("server"):
            self._arena.server.kill()
            time.sleep(0.5)
            self._arena.server.start(120)

    def _child(self) -> int:
        def alive() -> list[int]:
            found = [pid for worker in self.workers for pid in worker.children()]
            return [pid for pid in found if Path(f"/proc/{pid}").exists()]

        return self._arena.chance.choice(until(alive, _ON_S, "a child"))

    def _lose(self, victim: Program) -> None:
        self._arena.kill([victim.pid, *children_of(victim.pid)])
        victim.process.wait()
        if victim in self.workers:
            del self.workers[victim]
            self.start(self._arena.chance.choice([(), *self._tags]))
        else:
            self._arena.start_worker().wait_ready()


def endure(arena: Arena, uses: Sequence[Use], hits: int, tags: Sequence[Tags] = ((), ())) -> str:
    """Hit workers, beats and the server while users do what they do, and see that all is as it must be.

    Args:
        hits: how many faults; after each the users go on.
    """
    topics = [use.topic for use in uses]
    storm = Storm(arena, topics, tags)
    for use in uses:
        use.prepare()
    for one in tags:
        storm.start(one)
    with ExitStack() as stack:
        counts = [stack.enter_context(load(arena, use.act, use.pause_s)) for use in uses]

        def go_on(more: int) -> None:
            targets = [count() + more for count in counts]
            what = f"users go on; logs:\n{arena.tail()}"
            until(
                lambda: all(count() >= target for count, target in zip(counts, targets, strict=True)), _ON_S, what, 0.05
            )

        go_on(5)
        for _ in range(hits):
            storm.hit()
            go_on(5)
    storm.calm()
    for use in uses:
        use.settle()
    wait_done(arena, *topics)
    wrong = [finding for use in uses for finding in use.check()]
    assert not wrong, f"{len(wrong)} findings: {wrong[:8]}"
    storm.stop()
    arena.goes_on()
    return f"{hits} faults; {', '.join(use.told() for use in uses)}"
