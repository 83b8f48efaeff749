"""Protocol between a supervisor and its child: instructions in a file, reports over a pipe, exit codes.

The exit code is for the supervisor: 0 if the child was told to stop; USAGE if the app or the settings are wrong, so
that another child would fail too; anything else is a crash. A child that wants to be replaced says so in its last
message on the status pipe, because any handler can end the process with any exit code.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

from emsworker.core.counted import counted
from emsworker.core.errors import EmsError
from emsworker.core.servers import MAIN

USAGE, FAILED = 2, 1
READY, ENDING, RECYCLING, HUNG, TALLY = "ready", "ending", "recycling: ", "hung: ", "tally: "
AWAY, HEALTH = "away: ", "health: "


@dataclass(frozen=True)
class ChildHealth:
    """A child's report about itself, each second.

    Attributes:
        stalled: why one of its threads makes no progress; empty if all do, also while the server is away.
        away: why it cannot take messages now, because of the server; empty if it can.
        silent_s: seconds since the server's last answer to a look for work, if that is too long; else 0.
        refusal: the error by which the server refuses the user; empty if it does not.
        full: the error by which the server says that its disk is full; empty if it has room.
    """

    stalled: str = ""
    away: str = ""
    silent_s: float = 0.0
    refusal: str = ""
    full: str = ""

    def to_text(self) -> str:
        """Serialize as a report on the status pipe."""
        return HEALTH + json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> ChildHealth:
        """Parse such a report; a damaged one tells nothing but that the child runs."""
        try:
            return cls(**json.loads(text.removeprefix(HEALTH)))
        except (ValueError, TypeError):
            return cls()


@dataclass(frozen=True)
class WorkDone:
    """The work that a process has done: messages run, attempts that failed, and dead letters."""

    ran: int = 0
    failed: int = 0
    dead: int = 0

    def __add__(self, other: WorkDone) -> WorkDone:
        return WorkDone(self.ran + other.ran, self.failed + other.failed, self.dead + other.dead)

    def __str__(self) -> str:
        failed, dead = counted(self.failed, "failed attempt"), counted(self.dead, "dead letter")
        return f"{counted(self.ran, 'message')} run, {failed}, {dead}"

    def to_report(self) -> str:
        """Serialize for the status pipe."""
        return f"{TALLY}{self.ran} {self.failed} {self.dead}"

    @classmethod
    def from_report(cls, text: str) -> WorkDone:
        return cls(*map(int, text.removeprefix(TALLY).split()))


@dataclass(frozen=True)
class ChildSpec:
    """The supervisor's instructions to a child, as JSON in a file that it inherits.

    Args:
        app: ``module`` or ``module:name``.
        topics: the topics to consume; empty for all that the app has handlers for.
        groups: the groups to run; empty for all.
        tags: it runs groups that require none, or some of these.
        threads: consumer threads, or ``None`` for the app's setting.
        process_id: groups the client rows of this process.
        name: the worker's name, for display.
        log_level: a level name of the standard logging module.
        parent: a descriptor whose other end the supervisor holds; the child ends when it closes.
        url, redis_url: addresses that override the app's own, as ``--url`` does; ``None`` keeps the app's.
        status: the descriptor on which to report "ready", an error, or the reason for a replacement; -1 for none.
        max_tasks, max_memory_mib: limits at which to be replaced, or ``None`` for the app's settings.
        number: index of this child in its worker; its replacement has the same.
        metrics: the folder in which its metrics are counted, for the supervisor to serve; empty for none.
        log_format: ``text`` or ``json``; log_done: log every message that is done; log_repeats: the most
            lines of one kind in a minute, 0 for all.
        server: of several servers, the one that it consumes from.
        suspects: the descriptor of a file that the children of a worker share; see :class:`Suspects`.
        spare_s: seconds for which it takes no suspect messages.
    """

    app: str
    topics: tuple[str, ...]
    groups: tuple[str, ...]
    threads: int | None
    process_id: str
    name: str
    log_level: str
    parent: int
    url: str | None = field(default=None, repr=False)
    redis_url: str | None = field(default=None, repr=False)
    status: int = -1
    max_tasks: int | None = None
    max_memory_mib: int | None = None
    number: int = 0
    metrics: str = ""
    log_format: str = "text"
    log_done: bool = False
    log_repeats: int = 0
    server: str = MAIN
    suspects: int = -1
    spare_s: float = 0.0
    tags: tuple[str, ...] = ()

    def wants(self, topic: str, group: str | None = None) -> bool:
        """Return whether a child consumes this topic and group, if it has its tags, or this topic's broadcasts."""
        return (not self.topics or topic in self.topics) and (group is None or not self.groups or group in self.groups)

    def has(self, requires: Collection[str]) -> bool:
        """Return whether a child has all the tags that a group requires."""
        return set(requires) <= set(self.tags)

    def to_json(self) -> str:
        """Serialize for the child; the addresses have passwords, so that nobody else may read it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ChildSpec:
        """Parse what the supervisor has written.

        Raises:
            EmsError: the text is not a serialized :class:`ChildSpec`.
        """
        try:
            values = json.loads(text)
            return cls(**values | {name: tuple(values[name]) for name in ("topics", "groups", "tags")})
        except (ValueError, TypeError, KeyError, RecursionError):
            raise EmsError("a child was not told by a supervisor what to do; run `ems worker`") from None

    def tell(self, text: str) -> None:
        """Report "ready" to the supervisor, or in one line an error or the reason why this process ends."""
        if self.status < 0:
            return
        with contextlib.suppress(BrokenPipeError):  # the supervisor is gone; the other pipe shows that too
            os.write(self.status, text.encode()[:60000] + b"\0")

    def report_heartbeat(self, *reports: str) -> None:
        """Report that this process can run Python code, and these; never wait for a supervisor that is paused."""
        _, writable, _ = select.select([], [self.status], [], 0)
        if writable:
            self.tell("\0".join(reports))
