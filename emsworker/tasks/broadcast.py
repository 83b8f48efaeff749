"""Broadcast subscriptions as an app declares them: every worker process gets every message of the topic."""

from __future__ import annotations

from dataclasses import dataclass

from emsworker.core.errors import Ignore
from emsworker.core.ladder import Decision, Done, Dropped, Ladder
from emsworker.core.options import option, whole
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.route import Route

BROADCAST_OPTIONS = frozenset({"concurrency", "timeout_s", "soft_time_limit_s", "hard_time_limit_s"})
"""The options of a handler that mean something for a broadcast."""


@dataclass(frozen=True)
class BroadcastOptions(HandlerOptions):
    """Options of a broadcast handler: it runs one message after the other, and none again after an error."""

    concurrency: int = option(1, whole(1, 65535))

    def decide(self, group: Ladder, attempt: int, error: BaseException) -> Decision:
        """Drop a message after an error, and go on with the next one."""
        return Done() if isinstance(error, Ignore) else Dropped()


@dataclass
class BroadcastRoute(Route):
    """The handler of one broadcast subscription; its ``group`` is its name in logs and middleware.

    Args:
        resumes: its name is stable: the position of a process is stored, and its successor resumes there.
    """

    resumes: bool = False
