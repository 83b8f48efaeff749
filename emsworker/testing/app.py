"""In-memory app for users' own tests: no server, the same API, the worker's own rules.

The worker's own executor decides which handler gets a message, what an error means, when a message is retried and when
it is dead. Only the stream and its clock are replaced.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from emsworker.app import Ems
from emsworker.broker.channel import Send
from emsworker.consume.context import RunContext, RunHooks
from emsworker.consume.executor import Executor
from emsworker.consume.result_writer import ResultWriter
from emsworker.core.codec import decode_headers
from emsworker.core.counted import counted
from emsworker.core.errors import EmsError
from emsworker.core.ids import new_claim_id, parse_uid, uid_text
from emsworker.core.model import (
    Claim,
    ClaimSource,
    Failure,
    Isolation,
    Message,
    NewMessage,
    Order,
    Receipt,
    Topic,
)
from emsworker.publish.cancel import id_and_topic, unknown_message
from emsworker.publish.transaction import Transaction
from emsworker.store.groups.progress import Flush
from emsworker.tasks.results import ResultSet, uids_of
from emsworker.tasks.task import Route
from emsworker.testing.memory import MemoryCatalog, MemoryKeys, MemoryOutbox, MemoryResults, NoDatabase

_CLAIM = 500
_MOST_RUNS = 20_000

T = TypeVar("T")


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


@dataclass
class _Kept:
    """A message of the stream.

    Attributes:
        due_at: the time from which it may be read.
        unfinished: how many groups have not finished it.
    """

    topic: str
    new: NewMessage
    offset: int
    due_at: datetime
    unfinished: int = 0
    cancelled: bool = False


@dataclass(order=True)
class _Waiting:
    """A message that one group is to run; ordered by due time."""

    due_at: datetime
    number: int
    route: Route = field(compare=False)
    kept: _Kept = field(compare=False)
    attempt: int = field(compare=False, default=1)

    @property
    def offset(self) -> int:
        """Offset of the message."""
        return self.kept.offset


class TestApp:
    """The app's stream in memory, as a context manager: ``with app.test() as test:``.

    Calls are kept until :meth:`run`; retries and delayed messages wait for the clock, which :meth:`run` advances.

    Args:
        app: the app whose tasks and subscriptions are run.
        connection: a PyMySQL connection for transactional handlers; each gets a transaction on it.
        eager: run messages as soon as they are sent.

    Attributes:
        sent: every message that was sent, in order.
        dead: the dead letters.
    """

    __test__ = False  # or pytest would collect it

    def __init__(self, app: Ems, *, connection: Any = None, eager: bool = False) -> None:
        self.app = app
        self.sent: list[Message] = []
        self.dead: list[DeadCall] = []
        self._eager = eager
        self._connection = connection
        self._offset_s = timedelta()
        self._numbers = itertools.count(1)
        self._waiting: list[_Waiting] = []
        self._due: list[tuple[int, _Waiting]] = []  # due messages; the highest priority comes first
        self._running = False
        self._kept: dict[tuple[str, bytes], _Kept] = {}
        self._results = MemoryResults(lambda: self.now)
        self.once_keys = MemoryKeys(lambda: self.now)
        self._outbox = MemoryOutbox(app, self, connection)
        self._taken: dict[str, Any] = {}

    # -- in place of the stream ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replace the app's stream until :meth:`stop`.

        Raises:
            EmsError: the app is in a test already.
        """
        if self.app.stand_in is not None:
            raise EmsError(f"app {self.app.name!r} runs in memory already; end that test first")
        catalog = MemoryCatalog(self.app.settings, self.app.broadcasts.kind_of)
        parts = {"catalog": catalog, "_producer": self, "outbox": self._outbox, "database": NoDatabase()}
        for name, value in parts.items():
            self._taken[name] = self.app.__dict__.pop(name, None)
            self.app.__dict__[name] = value
        self.app.stand_in = self

    def stop(self) -> None:
        """Restore the app's stream."""
        self.app.stand_in = None
        for name, value in self._taken.items():
            del self.app.__dict__[name]
            if value is not None:
                self.app.__dict__[name] = value

    def __enter__(self) -> TestApp:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def send(self, topic: Topic, messages: Sequence[NewMessage]) -> list[Receipt]:
        """Accept messages, as a producer does."""
        receipts = [self.take(topic, message, self.now) for message in messages]
        self.settle()
        return receipts

    def take(self, topic: Topic, message: NewMessage, due_at: datetime) -> Receipt:
        """Accept a message that may be read from ``due_at`` on, unless its uid is known already."""
        uid = uid_text(message.uid)
        known = self._kept.get((topic.name, message.uid))
        if known is not None:
            return Receipt(uid, topic.name, 0, known.offset, created=False)
        kept = _Kept(topic.name, message, next(self._numbers), due_at)
        self._kept[topic.name, message.uid] = kept
        headers = decode_headers(message.headers)
        self.sent.append(self._message(kept, 1))
        for route in self._routes_of(topic.name):
            if route.filter.matches(message.tag, headers):
                kept.unfinished += 1
                heapq.heappush(self._waiting, _Waiting(due_at, next(self._numbers), route, kept))
        return Receipt(uid, topic.name, 0, kept.offset)

    def settle(self) -> None:
        """Run the accepted messages, if the app is eager."""
        if self._eager and not self._running:
            self.run()

    def is_unfinished(self, topic: str, uid: bytes) -> bool:
        """Return whether a message is not due yet, or a group has not finished it, or there is no group yet."""
        kept = self._kept.get((topic, uid))
        if kept is None or kept.cancelled:
            return False
        return kept.due_at > self.now or kept.unfinished > 0 or not self._routes_of(topic)

    def cancel(self, message: str | Receipt, topic: str | None) -> bool:
        """Cancel a message; see :meth:`Ems.cancel`."""
        message_id, name = id_and_topic(message, topic)
        uid = parse_uid(message_id)
        kept = next((one for (place, known), one in self._kept.items() if known == uid and name in (None, place)), None)
        if kept is None:
            raise unknown_message([name] if name else [], message_id)
        if not (kept.cancelled or self.is_unfinished(kept.topic, uid)):
            return False
        if kept.due_at > self.now:
            del self._kept[kept.topic, uid]  # its row is deleted, so its uid can be sent again
        kept.cancelled = True
        self._waiting = [one for one in self._waiting if one.kept is not kept]
        self._due = [(level, one) for level, one in self._due if one.kept is not kept]
        heapq.heapify(self._waiting)
        heapq.heapify(self._due)
        return True

    def results(self, messages: Sequence[Receipt | str]) -> ResultSet:
        """Return the results of calls; they do not wait, so the calls must have run."""
        return ResultSet(uids_of(messages), self._results, lambda uids: {}, patience_s=0.0)

    def _routes_of(self, topic: str) -> list[Route]:
        routes = [*self.app.routes.values(), *self.app.broadcasts.values()]
        return [route for route in routes if route.topic == topic]

    def _message(self, kept: _Kept, attempt: int) -> Message:
        new, born_at = kept.new, kept.due_at.replace(tzinfo=None).isoformat()
        row = (kept.offset, new.uid, new.key, new.tag, new.headers, new.body, born_at)
        return Message(kept.topic, 0, row, self.app.decoder, attempt)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The clock, in UTC: real time plus what was added to it."""
        return datetime.now(UTC) + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        self._offset_s += timedelta(seconds=seconds)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run all messages, advancing the clock to every retry and delayed message; return the number of runs.

        Raises:
            EmsError: the runs do not come to an end.
        """
        runs = self.run_due()
        while self._waiting:
            self.advance(max(0.0, (self._waiting[0].due_at - self.now).total_seconds()))
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
            while batch := self._next_claim():
                runs += len(batch)
                if runs > _MOST_RUNS:
                    raise EmsError(
                        f"{counted(runs, 'run')} at one moment and no end: does a task send itself for ever?"
                    )
                self._run(batch)
        finally:
            self._running = False
        return runs

    def _next_claim(self) -> list[_Waiting]:
        """Return what one client would claim: due messages of one group and priority, first runs or retries."""
        while self._waiting and self._waiting[0].due_at <= self.now:
            due = heapq.heappop(self._waiting)
            heapq.heappush(self._due, (-due.kept.new.level, due))
        batch: list[_Waiting] = []
        while self._due and len(batch) < _CLAIM and (not batch or _fits(self._due[0][1], batch[0])):
            due = heapq.heappop(self._due)[1]
            if (held_until := self._held_until(due)) is None:
                batch.append(due)
            else:
                due.due_at = held_until
                heapq.heappush(self._waiting, due)
        return sorted(batch, key=lambda waiting: waiting.offset)

    def _held_until(self, due: _Waiting) -> datetime | None:
        """Return when the last earlier message is retried that must run before ``due``, or ``None``."""
        if due.route.order is Order.NONE:
            return None
        times = [one.due_at for one in self._waiting if one.attempt > 1 and _comes_before(one, due)]
        return max(times, default=None)

    def _run(self, batch: list[_Waiting]) -> None:
        settings, route = self.app.settings, batch[0].route
        source = ClaimSource.STREAM if batch[0].attempt == 1 else ClaimSource.RETRY
        first, last = batch[0].offset, batch[-1].offset
        messages = [self._message(one.kept, one.attempt) for one in batch]
        claim = Claim(0, 0, first, last, first - 1, new_claim_id(), source, Isolation.NONE, "test", messages)
        claim.taken_at = self.now.replace(tzinfo=None).isoformat()
        channel: Any = _Transactions(route, self._outbox, self._connection)
        results, hooks = ResultWriter(settings.result_ttl_s, self._results), RunHooks.of(self.app.middleware)
        executor = Executor(RunContext(route, settings.retry_ladder(), channel, results, hooks))
        claim_run = executor.begin(claim, 0, settings.timeout_s, 0)
        executor.run(claim_run)
        flush = claim_run.finish()
        assert flush is not None, "nobody else has the claim"
        failures = {failure.offset: failure for one in [*channel.flushes, flush] for failure in one.failures}
        for waiting, message in zip(batch, messages, strict=True):
            waiting.kept.unfinished -= 1
            if waiting.offset in failures and not waiting.kept.cancelled:
                self._fail(failures[waiting.offset], waiting, message)

    def _fail(self, failure: Failure, waiting: _Waiting, message: Message) -> None:
        if failure.retry_in_s is not None:
            waiting.kept.unfinished += 1
            waiting.due_at = self.now + timedelta(seconds=failure.retry_in_s)
            waiting.attempt += 1
            heapq.heappush(self._waiting, waiting)
        elif failure.dead is not None:
            self.dead.append(DeadCall(message, waiting.route.group, failure.attempt, failure.dead, failure.error))


def _comes_before(one: _Waiting, other: _Waiting) -> bool:
    """Return whether ``one`` must run before ``other`` in a group that runs in order."""
    if one.route is not other.route or one.offset >= other.offset:
        return False
    keys = (one.kept.new.key, other.kept.new.key)
    return one.route.order is Order.PARTITION or (keys[0] is not None and keys[0] == keys[1])


def _fits(one: _Waiting, first: _Waiting) -> bool:
    """Return whether two messages may share a claim; in a group that runs in order, each has its own claim."""
    if first.route.order is not Order.NONE:
        return False
    both_first = (one.attempt == 1) == (first.attempt == 1)
    return both_first and one.route is first.route and one.kept.new.level == first.kept.new.level


class _Transactions:
    """The transactions of a channel, on the connection that the test gives."""

    def __init__(self, route: Route, outbox: MemoryOutbox, connection: Any) -> None:
        self._route = route
        self._outbox = outbox
        self._connection = connection
        self.flushes: list[Flush] = []

    def transact(
        self, call: Callable[[Transaction], T], commit: Callable[[T, Send], None], is_cut_short: Callable[[], bool]
    ) -> T:
        if self._connection is None:
            raise EmsError(
                f"a handler of {self._route.group} is transactional: give the test a connection, "
                "app.test(connection=...), or test it on a real stream with the fixture ems_stream"
            )
        transaction = Transaction(self._connection)
        with self._outbox.during(transaction, self._connection):
            returned = call(transaction)
            commit(returned, self.flushes.append)
        return returned
