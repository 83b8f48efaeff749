"""In-memory app for users' own tests: no server, the same API, the worker's own rules.

The worker's own executor decides which handler gets a message, what an error means, when a message is retried and when
it is dead. Only the stream and its clock are replaced: by :class:`emsworker.broker.memory.MemoryBroker`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from emsworker.broker.memory import MemoryBroker
from emsworker.broker.memory.log import KeptMessage
from emsworker.broker.port import Broker
from emsworker.consume.claim_run import ClaimRun
from emsworker.consume.context import RunContext, RunHooks
from emsworker.consume.executor import Executor
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.codec import encode_headers
from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.errors import EmsError
from emsworker.core.model import Claim, Group, Message, NewMessage, Topic, priority_of
from emsworker.core.schedule import Declared, slot_uid
from emsworker.core.times import in_utc
from emsworker.core.work import AvailableWork, Claimant
from emsworker.tasks.fairness import fair_of
from emsworker.tasks.middleware import Middleware
from emsworker.tasks.registry import Registry
from emsworker.tasks.route import Route

_CLAIM = 500
_MOST_RUNS = 20_000
_CLIENT = "test"


class DeadCall(NamedTuple):
    """A message that was given up.

    Attributes:
        group: the group whose handler gave it up.
        reason: the reason, in a few words.
        error: the error, with its traceback.
    """

    message: Message
    group: str
    attempt: int
    reason: str
    error: str


class TestedApp(Protocol):
    """The app that is tested."""

    name: str
    settings: Settings
    middleware: tuple[Middleware, ...]
    registry: Registry
    streams: Broker


@dataclass(frozen=True)
class _Reader:
    """A group of the stream, and the handlers that read it."""

    topic: Topic
    group: Group
    route: Route


class TestApp:
    """The app's stream in memory, as a context manager: ``with app.test() as test:``.

    Calls are kept until :meth:`run`; retries and delayed messages wait for the clock, which :meth:`run` advances.

    Args:
        app: the app whose tasks and subscriptions are run.
        connection: a PyMySQL connection for transactional handlers; each gets a transaction on it.
        eager: run messages as soon as they are sent.
    """

    __test__ = False  # or pytest would collect it

    def __init__(self, app: TestedApp, *, connection: Any = None, eager: bool = False) -> None:
        self.app = app
        self._eager = eager
        self._broker = MemoryBroker(app.settings, app.registry.topic_settings, connection, self._settle, self._cancel)
        self._channel = self._broker.channel()
        self._before: Broker | None = None
        self._running = False
        self._claim_run: ClaimRun | None = None
        self._numbers = count(1)
        self._last_turn: dict[int, int] = {}

    # -- in place of the stream ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replace the app's stream until :meth:`stop`.

        Raises:
            EmsError: the app is in a test already.
        """
        before = self.app.streams
        if before.in_memory:
            raise EmsError(f"app {self.app.name!r} runs in memory already; end that test first")
        self._before, self.app.streams = before, self._broker
        self._declare_schedules()

    def stop(self) -> None:
        """Restore the app's stream."""
        if self._before is not None:
            self.app.streams, self._before = self._before, None

    def __enter__(self) -> TestApp:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def sent(self) -> list[Message]:
        """Every message that was sent, in order."""
        return [kept.read(self._broker.decoder, 1) for kept in self._broker.log.accepted]

    @property
    def dead(self) -> list[DeadCall]:
        """The dead letters."""
        names = {reader.group.id: reader.group.name for reader in self._readers()}
        return [
            DeadCall(
                kept.read(self._broker.decoder, failure.attempt),
                names[group_id],
                failure.attempt,
                failure.dead or "",
                failure.error,
            )
            for group_id, kept, failure in self._broker.dead
        ]

    def _settle(self) -> None:
        """Run the accepted messages, if the app is eager."""
        if self._eager and not self._running:
            self.run()

    def _cancel(self, kept: KeptMessage) -> None:
        """Cancel a message that runs, or is to run next."""
        run = self._claim_run
        if run is not None and (run.claim.topic, run.claim.partition) == (kept.topic.name, kept.partition):
            run.cancel({kept.offset})

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The clock, in UTC: real time plus what was added to it."""
        return self._broker.now()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._broker.advance(seconds)

    # -- schedules -----------------------------------------------------------------------------------------------------

    def fire_due(self) -> int:
        """Send the calls of schedules whose slots have passed, as a beat would; return the number of slots.

        A schedule of the app's code counts from the start of the test, or from the first call of this method after it
        was declared; one that a user creates, from then on. The calls are kept until :meth:`run`.
        """
        self._declare_schedules()
        due = [*self._broker.schedules.take_due()]
        for one, slot in sorted(due, key=lambda found: found[1]):
            self._send_slot(one, slot)
        return len(due)

    def fire(self, schedule: str, slot: datetime | None = None) -> str:
        """Send the call of a schedule for a slot, whatever its times are, and return the id of the message.

        Args:
            schedule: its name; that of a periodic task is the task's unless it was given one.
            slot: what the task reads from ``ems-slot``; without a zone it is UTC, and by default now.

        Raises:
            UnknownSchedule: there is none of that name.
        """
        self._declare_schedules()
        declared = self._broker.schedules.find(schedule).declared
        return self._send_slot(declared, self.now if slot is None else in_utc(slot))

    def _declare_schedules(self) -> None:
        declared = self.app.registry.schedules.values()
        self._broker.schedules.declare(
            one.declared(self.app.settings, self._broker.topic(one.task.topic)) for one in declared
        )

    def _send_slot(self, one: Declared, slot: datetime) -> str:
        headers = one.slot_headers(slot)
        message = NewMessage(
            *(slot_uid(one.name, slot), one.key, one.tag, encode_headers(headers), one.body),
            priority=priority_of(headers) or None,
            is_call=True,
        )
        return self._broker.send(one.topic, [message])[0].id

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run all messages, advancing the clock to every retry and delayed message; return the number of runs.

        Raises:
            EmsError: the runs do not come to an end.
        """
        runs = self.run_due()
        while (due_at := self._broker.next_due()) is not None:
            self.advance(max(0.0, (due_at - self.now).total_seconds()))
            runs += self.run_due()
        return runs

    def run_due(self) -> int:
        """Run what is due now and what that sends, without waiting; return the number of runs.

        Raises:
            EmsError: the runs do not come to an end.
        """
        runs = 0
        self._running = True
        try:
            while (found := self._next_claim()) is not None:
                reader, claim = found
                runs += len(claim.messages)
                if runs > _MOST_RUNS:
                    raise EmsError(
                        f"{counted(runs, 'run')} at one moment and no end: does a task send itself for ever?"
                    )
                self._run(reader, claim)
        finally:
            self._running = False
        return runs

    def _readers(self) -> Iterator[_Reader]:
        for route in (*self.app.registry.routes.values(), *self.app.registry.broadcasts.values()):
            topic = self._broker.topic(route.topic)
            yield _Reader(topic, self._broker.group(topic, route.group, route.filter, route.order), route)

    def _next_claim(self) -> tuple[_Reader, Claim] | None:
        """Claim what one client would: of the group that has waited longest, higher priorities first."""
        readers = {reader.group.id: reader for reader in self._readers()}
        work = self._channel.find_work([*readers]).work
        for group_id in sorted(work, key=lambda one: self._last_turn.get(one, 0)):
            claim = next(self._claims(readers[group_id], work[group_id]), None)
            if claim is not None:
                self._last_turn[group_id] = next(self._numbers)
                return readers[group_id], claim
        return None

    def _claims(self, reader: _Reader, work: AvailableWork) -> Iterator[Claim]:
        who = reader.topic, reader.group, _CLIENT, _CLAIM, 0, self._broker.decoder
        claimant = Claimant(*who, fair=fair_of(reader.route))
        takes = [partial(self._channel.take_range, claimant, partition) for partition in work.partitions]
        if work.retries:
            takes.append(partial(self._channel.take_retries, claimant))
        if work.waiting:
            takes.append(partial(self._channel.take_waiting, claimant, from_partition=work.highest_waiting))
        for take in takes:
            if isinstance(claim := take(), Claim):
                yield claim

    def _run(self, reader: _Reader, claim: Claim) -> None:
        settings = self.app.settings
        writer, hooks = ResultWriter(settings.result_ttl_s), RunHooks.of(self.app.middleware)
        executor = Executor(RunContext(reader.route, settings.retry_ladder(), self._channel, writer, hooks))
        run = self._claim_run = executor.begin(claim, reader.topic.id, settings.timeout_s, threading.get_ident())
        if executor.run(run):
            flush = run.finish(self._channel)
            assert flush is not None, "nobody else has the claim"
            self._channel.flush(flush)
        elif not run.closed:  # a message must be retried before the next one
            run.give_back(self._channel)
