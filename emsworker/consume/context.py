"""Everything that running the messages of a group needs besides a claim: its handlers, a channel, shared resources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from emsworker.broker.channel import Channel
from emsworker.consume.attempts import FailureTally
from emsworker.consume.coroutines import EventLoop
from emsworker.consume.isolation import IsolationGate
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.ladder import Ladder
from emsworker.tasks.middleware import Hooks, Middleware, hooks
from emsworker.tasks.route import Route

_MOST_LANES = 1024


@dataclass(frozen=True)
class RunHooks:
    """The middleware's hooks and brackets of a run; see :class:`Middleware`."""

    before: Hooks = ()
    after: Hooks = ()
    on_retry: Hooks = ()
    on_dead: Hooks = ()
    around: Hooks = ()

    @classmethod
    def of(cls, middleware: Sequence[Middleware]) -> RunHooks:
        """Return the hooks that an app's middleware overrides."""
        names = ("before_run", "after_run", "on_retry", "on_dead", "around_run")
        return cls(*(hooks(middleware, name) for name in names))


def lane_pool() -> Pool:
    """Return a pool for lanes of keys; its threads are made as they are needed."""
    return ThreadPoolExecutor(_MOST_LANES, "ems-lane")


@dataclass(frozen=True)
class RunContext:
    """The surroundings of an executor.

    Args:
        route: the group's handlers.
        ladder: the group's ladder, for handlers without one of their own.
        channel: the thread's own channel, in which transactional handlers run.
        result_writer: creates the results of tasks that keep them.
        hooks: of the app's middleware.
        may_go_on: checked before every message; false if the process stops or its lease is no longer trusted.
        gate: the process's gate for poison isolation.
        loop: the process's event loop, for coroutines.
        pool: the process's threads for the lanes of keys that run in order.
        lanes: the most lanes that a claim gets; 0 if the claim's own thread runs its messages.
        tally: counts the process's attempts that failed.
        log_done: log every message that is done.
    """

    route: Route
    ladder: Ladder
    channel: Channel
    result_writer: ResultWriter
    hooks: RunHooks = RunHooks()
    may_go_on: Callable[[], bool] = lambda: True
    gate: IsolationGate = field(default_factory=IsolationGate)
    loop: EventLoop = field(default_factory=EventLoop)
    pool: Pool = field(default_factory=lane_pool)
    lanes: int = 1
    tally: FailureTally = field(default_factory=FailureTally)
    log_done: bool = False
