"""An app in memory, for its users' own tests: no server, the same API, the worker's own rules.

What decides is the worker's executor itself: which handler gets what, what an error means, when a message is retried
and when it is dead. Only the stream and its clock are stand-ins.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from emsworker.app import Ems
from emsworker.core.errors import EmsError
from emsworker.core.ids import check_name, new_claim_id, uid_text
from emsworker.core.model import (
    Care,
    Claim,
    ClaimSource,
    Entry,
    Failure,
    Message,
    NewMessage,
    Receipt,
    Topic,
    TopicRule,
)
from emsworker.results import ResultSet, uids_of
from emsworker.runtime.coroutines import EventLoop
from emsworker.runtime.executor import Executor
from emsworker.runtime.keeping import Keeper
from emsworker.runtime.turns import Turns
from emsworker.runtime.work import Work
from emsworker.store.once import Begun
from emsworker.store.results import ResultRow
from emsworker.task import Handler, Route
from emsworker.transaction import Transaction

_CLAIM = 500
_MOST_RUNS = 20_000


class DeadLetter(NamedTuple):
    """A message that was given up.

    Attributes:
        group: whose handler gave it up.
        reason: in a few words.
        error: with its traceback.
    """

    message: Message
    group: str
    attempt: int
    reason: str
    error: str


@dataclass(order=True)
class _Waiting:
    """A message that one group is to run."""

    due_at: datetime
    number: int
    route: Route = field(compare=False)
    new: NewMessage = field(compare=False)
    offset: int = field(compare=False)
    topic: str = field(compare=False)
    attempt: int = field(compare=False, default=1)


class TestApp:
    """The app's stream in memory, as a context manager: ``with app.test() as test:``.

    Calls are kept until :meth:`run`; retries and delayed messages wait for the clock, which :meth:`run` moves on.

    Args:
        app: whose tasks and subscriptions are run.
        connection: of PyMySQL, for transactional handlers; each gets a transaction on it.
        eager: run what is sent at once.

    Attributes:
        sent: every message that was sent, in order.
        dead: the dead letters.
    """

    __test__ = False  # or pytest would collect it

    def __init__(self, app: Ems, *, connection: Any = None, eager: bool = False) -> None:
        self.app = app
        self.sent: list[Message] = []
        self.dead: list[DeadLetter] = []
        self._eager = eager
        self._connection = connection
        self._offset_s = timedelta()
        self._numbers = itertools.count(1)
        self._waiting: list[_Waiting] = []
        self._running = False
        self._known: dict[tuple[str, bytes], Receipt] = {}
        self._results = _Results()
        self.once_keys = _Keys()
        self._taken: dict[str, Any] = {}

    # -- in place of the stream ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the place of the app's stream, until :meth:`stop`.

        Raises:
            EmsError: the app is in a test already.
        """
        if self.app.stand_in is not None:
            raise EmsError(f"app {self.app.name!r} runs in memory already; end that test first")
        for name, value in (("catalog", _Catalog(self.app)), ("_producer", self), ("database", _NoDatabase())):
            self._taken[name] = self.app.__dict__.pop(name, None)
            self.app.__dict__[name] = value
        self.app.stand_in = self

    def stop(self) -> None:
        """Give the app its stream back."""
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

    def close(self) -> None:
        """What a producer has; there is nothing to close."""

    def send(self, topic: Topic, messages: Sequence[NewMessage]) -> list[Receipt]:
        """Take messages, as a producer does."""
        receipts = [self._take(topic, message, self.now) for message in messages]
        if self._eager and not self._running:
            self.run()
        return receipts

    def send_later(self, topic: Topic, message: NewMessage, delay_s: float, due_at: datetime | None) -> Receipt:
        """Take a message that is due after so many seconds, or at a time."""
        receipt = self._take(topic, message, due_at or self.now + timedelta(seconds=delay_s))
        if self._eager and not self._running:
            self.run()
        return Receipt(receipt.id, topic.name, None, None, receipt.created)

    def results(self, messages: Sequence[Receipt | str]) -> ResultSet:
        """The results of calls; they wait for nobody: what is to have run must have run."""
        return ResultSet(uids_of(messages), self._results, lambda uids: {}, patience_s=0.0)

    def _take(self, topic: Topic, message: NewMessage, due_at: datetime) -> Receipt:
        known = self._known.get((topic.name, message.uid))
        if known is not None:
            return Receipt(known.id, topic.name, known.partition, known.offset, created=False)
        offset = next(self._numbers)
        receipt = self._known[topic.name, message.uid] = Receipt(uid_text(message.uid), topic.name, 0, offset)
        self.sent.append(self._message(topic.name, offset, message, 1))
        for route in [*self.app.routes.values(), *self.app.broadcasts.values()]:
            if route.topic == topic.name:
                heapq.heappush(self._waiting, _Waiting(due_at, next(self._numbers), route, message, offset, topic.name))
        return receipt

    def _message(self, topic: str, offset: int, new: NewMessage, attempt: int) -> Message:
        born_at = self.now.replace(tzinfo=None).isoformat()
        row = (offset, new.uid, new.key, new.tag, new.headers, new.body, born_at)
        return Message(topic, 0, row, self.app.decoder, attempt)

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The clock, in UTC: real time, and what was added to it."""
        return datetime.now(UTC) + self._offset_s

    def advance(self, seconds: float) -> None:
        """Move the clock on."""
        self._offset_s += timedelta(seconds=seconds)

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run all there is, moving the clock on to every retry and delayed message; returns how many runs.

        Raises:
            EmsError: it does not come to an end.
        """
        runs = self.run_due()
        while self._waiting:
            self.advance(max(0.0, (self._waiting[0].due_at - self.now).total_seconds()))
            runs += self.run_due()
        return runs

    def run_due(self) -> int:
        """Run what is due now, and what that sends, but wait for nothing; returns how many runs.

        Raises:
            EmsError: it does not come to an end.
        """
        runs = 0
        self._running = True
        try:
            while batch := self._next_claim():
                runs += len(batch)
                if runs > _MOST_RUNS:
                    raise EmsError(f"{runs} runs at one moment and no end: does a task send itself for ever?")
                self._run(batch)
        finally:
            self._running = False
        return runs

    def _next_claim(self) -> list[_Waiting]:
        """What one client would take at once: due messages of one group, first runs or retries."""
        batch: list[_Waiting] = []
        while self._waiting and self._waiting[0].due_at <= self.now and len(batch) < _CLAIM:
            first = self._waiting[0]
            if batch and (first.route is not batch[0].route or (first.attempt == 1) != (batch[0].attempt == 1)):
                break
            batch.append(heapq.heappop(self._waiting))
        return sorted(batch, key=lambda waiting: waiting.offset)

    def _run(self, batch: list[_Waiting]) -> None:
        settings, route = self.app.settings, batch[0].route
        source = ClaimSource.STREAM if batch[0].attempt == 1 else ClaimSource.RETRY
        first, last = batch[0].offset, batch[-1].offset
        messages = [self._message(one.topic, one.offset, one.new, one.attempt) for one in batch]
        claim = Claim(0, 0, first, last, first - 1, new_claim_id(), source, Care.NONE, "test", messages)
        claim.taken_at = self.now.replace(tzinfo=None).isoformat()
        work = Work(claim, 0, settings.timeout_s, 0)
        _Executor(self.app, route, Keeper(settings.result_ttl_s, self._results), self._connection).run(work)
        flush = work.finish()
        assert flush is not None, "nobody else has the claim"
        by_offset = {one.offset: (one, message) for one, message in zip(batch, messages, strict=True)}
        for failure in flush.failures:
            self._settle(failure, *by_offset[failure.offset])

    def _settle(self, failure: Failure, waiting: _Waiting, message: Message) -> None:
        if failure.retry_in_s is not None:
            waiting.due_at = self.now + timedelta(seconds=failure.retry_in_s)
            waiting.attempt += 1
            heapq.heappush(self._waiting, waiting)
        elif failure.dead is not None:
            self.dead.append(DeadLetter(message, waiting.route.group, failure.attempt, failure.dead, failure.error))


class _Executor(Executor):
    """The worker's own, but for the server's transactions."""

    def __init__(self, app: Ems, route: Route, keeper: Keeper, connection: Any) -> None:
        no_session: Any = None
        ladder = app.settings.retry_ladder()
        super().__init__(route, ladder, app.middleware, no_session, lambda: True, Turns(), keeper, EventLoop())
        self._connection = connection

    def _call_transactional(self, work: Work, messages: list[Message], handler: Handler) -> list[Failure]:
        if self._connection is None:
            raise EmsError(
                f"{handler.name} is transactional: give the test a connection, app.test(connection=...), "
                "or test it on a real stream with the fixture ems_stream"
            )
        self._connection.begin()
        try:
            failed = self._call_plainly(work, messages, handler, Transaction(self._connection))
        except BaseException:
            self._connection.rollback()
            raise
        self._connection.commit()
        failures = self._failures_of(messages, failed, handler.options, 0.0)
        self._keeper.put(self._results(messages, handler.options))
        work.done(messages, failures)
        return failures


class _Catalog:
    """Every topic is there."""

    def __init__(self, app: Ems) -> None:
        self._app = app
        self._topics: dict[str, Topic] = {}

    def topic(self, name: str) -> Topic:
        """The topic of that name."""
        if name not in self._topics:
            size = self._app.settings.max_message_bytes
            number = len(self._topics) + 1
            check_name("topic", name)
            kind = self._app.broadcasts.kind_of(name)
            self._topics[name] = Topic(number, name, kind, 1, TopicRule.READ_WRITE, size, None)
        return self._topics[name]


class _NoDatabase:
    """Says in one line what a test in memory cannot do."""

    def __getattr__(self, name: str) -> Any:
        raise EmsError(
            "the app runs in memory, without a database; use the fixture ems_stream for a test that needs one"
        )


class _Results:
    """Results of one test."""

    def __init__(self) -> None:
        self._rows: dict[bytes, ResultRow] = {}

    def put(self, row: ResultRow) -> None:
        self._rows[row.uid] = row

    def find(self, uids: Sequence[bytes]) -> dict[bytes, ResultRow]:
        return {uid: self._rows[uid] for uid in uids if uid in self._rows}

    def forget(self, uids: Sequence[bytes]) -> None:
        for uid in uids:
            self._rows.pop(uid, None)


class _Keys:
    """The keys of :meth:`Ems.once`; nobody dies here, so whatever has begun is done or given up."""

    def __init__(self) -> None:
        self._done: set[bytes] = set()

    def begin(self, key: bytes, ttl_s: float, running_s: float) -> Begun:
        return Begun(Entry.DONE if key in self._done else Entry.FIRST, b"")

    def finish(self, key: bytes, token: bytes, ttl_s: float) -> bool:
        self._done.add(key)
        return True

    def cancel(self, key: bytes, token: bytes) -> None:
        self._done.discard(key)
