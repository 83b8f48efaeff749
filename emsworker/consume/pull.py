"""A consumer for programs that want messages, not tasks: it fetches them, and settles them in any order.

Three threads stand behind it, as behind a worker process: one renews the lease, one looks for work, and one writes down
what was settled and retries what has timed out. Messages are claimed in the thread that fetches them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from emsworker.broker.mysql import MysqlBroker
from emsworker.consume.attempts import decide, describe
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claimer import BatchSizer
from emsworker.consume.claiming import Claiming, ConsumerClaims, ReadGroup
from emsworker.consume.flusher import Flusher
from emsworker.consume.in_hand import InHand, PulledRun
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller
from emsworker.core.durations import parse_duration
from emsworker.core.errors import (
    ConfigError,
    EmsError,
    LeaseLost,
    NotInHand,
    Problem,
    Reject,
    Retry,
    StoreError,
    StoreUnavailable,
    class_name,
    text_of,
)
from emsworker.core.ids import local_ip
from emsworker.core.ladder import Ladder
from emsworker.core.model import Group, Message, Order, Topic
from emsworker.core.options import is_whole
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.reconnect import until_connected
from emsworker.core.process.runnable import Runnable
from emsworker.core.selection.filters import Filter

log = logging.getLogger(__name__)

T = TypeVar("T")
_MOST, _SIDE_S, _LAST_WORDS_S, _PAUSE_S, _FETCHERS = 100_000, 5.0, 5.0, 0.1, 4
_GATHER_S = 0.002  # between deliveries of what was claimed ahead, while more than half of the prefetch is in hand


class PullConsumer:
    """A consumer of one group, made by :meth:`Ems.consumer`; a context manager, and an iterator over messages.

    Every method may be called from any thread; those that begin with ``a`` are for coroutines. A process that is forked
    from this one cannot use it.

    Args:
        source: the stream.
        name: of the app, shown in `ems clients`.
        topic, group: the group of messages, if it begins with one; :meth:`add` adds more.
        prefetch: the most messages in hand, and so, but for :meth:`claim_ahead`, the most in one claim.
        timeout: seconds that a message may be in hand, or text like ``"5m"``; by default the group's timeout. After
            that it counts as failed, and is retried as the group's ladder says.
        idle_timeout: iteration ends if no message has come for that long; by default only :meth:`stop` ends it.
        filter, order: of a new group, as in :meth:`Ems.subscribe`; another one that exists is refused.
        asks: an ack asks the server at once if the lease may have run out; otherwise it never waits.
        broadcasts: returns the ids of broadcast topics whose ends are read with each claim; by default none.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        source: MysqlBroker,
        name: str,
        topic: str | None = None,
        group: str | None = None,
        *,
        prefetch: int = 100,
        timeout: float | str | None = None,
        idle_timeout: float | str | None = None,
        filter: Filter | None = None,
        order: str | None = None,
        asks: bool = True,
        broadcasts: Callable[[], Collection[int]] = tuple,
    ) -> None:
        if not is_whole(prefetch) or not 1 <= prefetch <= _MOST:
            raise ConfigError([Problem("prefetch", repr(prefetch), f"must be a number of messages from 1 to {_MOST}")])
        if order is not None and order not in list(Order):
            raise ConfigError([Problem("order", repr(order), f"must be one of {', '.join(Order)}")])
        self._source, self._name, self._asks = source, name, asks
        self._names = (topic or "", group or "")
        self._filter, self._order = filter, Order(order or Order.NONE)
        self._broadcasts = broadcasts
        self._prefetch, self._ahead_s = prefetch, 0.0
        self._gathers_until = 0.0
        self._ladders: dict[int, Ladder] = {}  # by group id
        self._timeout_s = None if timeout is None else _seconds("timeout", timeout)
        self._idle_s = math.inf if idle_timeout is None else _seconds("idle_timeout", idle_timeout)
        self._sides: list[Runnable] = []
        self._pools: list[ThreadPoolExecutor] = []
        self._stopping = forks.Event()
        self._open = self._forked = False
        self._died: str | None = None
        self._in_hand = InHand()
        self._sizer = BatchSizer(source.settings.claim_s, prefetch)  # of claims for iteration
        self._yielded_at: float | None = None

    # -- opening and closing -------------------------------------------------------------------------------------------

    def open(self) -> Self:
        """Register a client and begin to look for work; the ``with`` statement does it.

        Raises:
            ConfigError: the topic is for broadcasts, or the group has another filter or order.
            UnknownTopic, UnknownGroup: it does not exist, and auto-create is off.
            StoreUnavailable, AccessDenied, SchemaMissing: the stream cannot be used.
        """
        if self._sides:
            raise EmsError("this consumer was opened before; make another one with app.consumer()")
        first = self._first()
        self._prepare()
        if first is not None:
            self._read(*first)
        try:
            until_connected(self._claiming.register, self._source.settings.publish_timeout_s)
        except BaseException:
            self._claiming.close()
            self._flusher.close()
            raise
        for side in self._sides:
            side.start()
        forks.after_fork(self._leave_to_parent)
        self._source.wakes.append(self._wake)
        self._open = True
        return self

    def _first(self) -> tuple[Topic, Group] | None:
        if not self._names[0]:
            return None
        topic = self._source.catalog.topic(self._names[0])
        return topic, self._source.catalog.group(topic, self._names[1], self._filter, self._order)

    @property
    def poller(self) -> Poller:
        """The thread that looks for work; another one may relieve it of looking for new messages."""
        return self._poller

    def _wake(self, topic_id: int, partitions: Collection[int]) -> None:
        """Look at once for what this process has sent."""
        self._poller.notify(topic_id, partitions)

    def _prepare(self) -> None:
        source, settings, database = self._source, self._source.settings, self._source.database
        token = secrets.token_hex(8)
        self._lease = LeaseRenewer(
            database, settings, token, self._name, local_ip(source.url), self._on_death, revives=True
        )
        self._poller = Poller(database, settings, {}, [], self._on_death)
        channel = source.channel()
        self._claiming = Claiming(
            channel.session,
            channel,
            source,
            self._lease,
            self._poller,
            self._prefetch,
            self._ahead_s,
            self._broadcasts,
        )
        self._flusher = Flusher(
            source.channel(patient=False),
            settings.ack_interval_s,
            ConsumerClaims(self._in_hand, self._claiming, self._time_out),
            self._on_death,
        )
        self._sides = [self._lease, self._poller, self._flusher]
        self._listener: Listener | None = None
        if source.redis_url is not None:
            wake, announce = self._poller.tell, self._poller.announce
            self._listener = Listener(source.redis_url, source.stream_id, [], wake, self._on_death, announce)
            self._sides.append(self._listener)

    # -- more groups ---------------------------------------------------------------------------------------------------

    def add(self, topic: str, group: str) -> None:
        """Read one more group, with the same prefetch.

        Raises:
            ConfigError: the topic is for broadcasts.
            UnknownTopic, UnknownGroup: it does not exist, and auto-create is off.
            StoreUnavailable: the server could not be reached.
        """
        self._check_usable()
        found = self._source.catalog.topic(topic)
        self._read(found, self._source.catalog.group(found, group))

    def _read(self, topic: Topic, group: Group) -> None:
        self._note_ladder(group)
        self._claiming.places[group.id] = ReadGroup(topic, group, self._timeout_s or group.timeout_s)
        if self._listener is not None:
            self._listener.listen_to(topic.id)
        self._poller.watch(group.id, topic, in_order=group.order is not Order.NONE)

    def _note_ladder(self, group: Group) -> None:
        self._ladders[group.id] = Ladder.parse(group.ladder, group.max_attempts, self._source.settings.jitter)

    def remove(self, topic: str, group: str) -> None:
        """Read a group no longer; what was delivered of it can still be settled."""
        self._check_usable()
        for place in list(self._claiming.places.values()):
            if (place.topic.name, place.group.name) == (topic, group):
                self._poller.unwatch(place.group.id)
                with self._claiming.mutex:
                    del self._claiming.places[place.group.id]
                    self._in_hand.unwant(place.group.id)

    def stop(self) -> None:
        """End iteration and every wait; messages in hand can still be settled. It may be called by a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Write down what was settled, give back what was not, with no attempt charged, and deregister.

        Raises:
            FenceLost: the claim of a message that was acked has another owner; the message is delivered again.
            StoreUnavailable: the server cannot be reached; what was settled since the last write is delivered again.
        """
        if not self._open or self._forked:
            return
        self._open = False
        self._source.wakes.remove(self._wake)
        self._stopping.set()
        for side in self._sides:
            if side is not self._lease:
                side.stop()
        self._in_hand.end_wait()
        for side in self._sides:
            if side is not self._lease:
                side.join(_SIDE_S)
        for pool in self._pools:
            pool.shutdown(wait=False)
        try:
            self._end()
        finally:
            self._lease.stop()
            self._lease.join(_SIDE_S)
            self._claiming.close()
            self._flusher.close()
        self._in_hand.raise_lost()

    def _end(self) -> None:
        """Give everything back under the client id, and then the client id."""
        with self._claiming.mutex:
            self._in_hand.give_back()
            until = ticks() + _LAST_WORDS_S
            while not self._flusher.write_all() and ticks() < until:
                forks.Event().wait(_PAUSE_S)
            left_s = max(_PAUSE_S, until - ticks())
            until_connected(self._claiming.deregister, left_s)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except EmsError as reason:
            if error is None:
                raise
            log.warning("the consumer of %s/%s ended with an error and lost settlements: %s", *self._names, reason)

    def _on_death(self, name: str, error: BaseException) -> None:
        self._died = f"thread {name} of the consumer died of {error!r}"
        self._stopping.set()

    def _leave_to_parent(self) -> None:
        self._forked = True

    def _check_usable(self) -> None:
        if not self._open:
            raise EmsError("the consumer is not open; use it inside `with app.consumer(...) as consumer`")
        self._check_alive()

    def _check_alive(self) -> None:
        if self._forked:
            raise EmsError("this consumer belongs to the parent process; open another one after the fork")
        if self._died is not None:
            raise EmsError(f"{self._died}; close the consumer and open another one")

    # -- fetching ------------------------------------------------------------------------------------------------------

    @property
    def prefetch(self) -> int:
        """The most messages in hand; it may be changed at any time."""
        return self._prefetch

    @prefetch.setter
    def prefetch(self, most: int) -> None:
        self._prefetch = most
        if self._sides:
            self._claiming.prefetch = most

    def claim_ahead(self, ahead_s: float) -> None:
        """Claim the work of some seconds beyond the prefetch, by the rate at which messages were settled lately.

        With a small prefetch a claim then still takes many messages, at most four times the prefetch beyond it. They
        are delivered within the prefetch; if none is for a second, those that wait go back.
        """
        self._ahead_s = ahead_s
        if self._sides:
            self._claiming.ahead_s = ahead_s

    def fetch(self, n: int = 1, wait: float = 1.0) -> list[Message]:
        """Return at most ``n`` messages as soon as there is one; an empty list if none has come in time.

        Args:
            n: fewer are returned if fewer are available at once, or if ``prefetch`` messages are in hand.
            wait: seconds to wait for the first message.

        Raises:
            StoreUnavailable: the server could not be reached in that time, or has refused to serve.
            ValueError: an argument is out of range.
        """
        if not is_whole(n) or n < 1:
            raise ValueError(f"fetch({n!r}): must be a number of messages, 1 or more")
        if not wait >= 0:
            raise ValueError(f"fetch(wait={wait!r}): must be a number of seconds, 0 or more")
        self._check_usable()
        return self._fetch(n, n, wait, forks.Event())

    def get(self, place: ReadGroup) -> Message | None:
        """Take one message of a group at once, whether it is read or not; ``None`` if there is none.

        Nor is there one while a suspect message has the process to itself, or waits for those in hand to be settled.

        Raises:
            StoreUnavailable: the server could not be reached.
        """
        self._check_usable()
        self._note_ladder(place.group)
        taken: list[Message] = []
        try:
            until_connected(partial(self._get_into, taken, place), self._source.settings.publish_timeout_s)
            return taken[0] if taken else None
        except BaseException:
            self._in_hand.put_back(taken)
            raise

    def _get_into(self, taken: list[Message], place: ReadGroup) -> None:
        self._claiming.catch_up(self._in_hand)
        if not self._lease.good or self._deliver(1, taken, place.group.id) or not self._in_hand.may_claim():
            return
        self._claiming.take_now(place, self._in_hand)
        self._deliver(1, taken, place.group.id)

    @property
    def losses(self) -> int:
        """Counts the leases that ran out and the claims that another owner has taken: what was in hand may be lost."""
        return self._in_hand.losses + self._lease.generation

    def _fetch(self, n: int, claim_size: int, wait: float, cancelled: Any) -> list[Message]:
        taken: list[Message] = []
        try:
            return self._fetch_into(taken, n, claim_size, wait, cancelled)
        except BaseException:  # also one from outside, as timeout libraries raise them: the program has got none
            self._in_hand.put_back(taken)
            raise

    def _fetch_into(self, taken: list[Message], n: int, claim_size: int, wait: float, cancelled: Any) -> list[Message]:
        until, trouble = ticks() + wait, None
        if wait > (pause_s := self._gathers_until - ticks()) > 0:
            self._in_hand.gather(self._prefetch // 2, pause_s)
        while True:
            self._check_alive()
            left_s = until - ticks()
            try:
                self._claiming.catch_up(self._in_hand)
                if self._lease.good and (messages := self._deliver(n, taken)):
                    return messages
                if self._stopping.is_set() or cancelled.is_set():
                    return []
                if self._claiming.take(claim_size, n, self._in_hand, left_s):
                    continue
                trouble = None
            except StoreError as error:  # also a grant that was revoked: it was there when the consumer was opened
                trouble = error
                self._in_hand.wait(min(left_s, _PAUSE_S))
            if left_s <= 0:
                if trouble is not None:
                    raise StoreUnavailable(f"nothing could be claimed for {wait:g} s: {trouble}") from trouble
                return []

    def _deliver(self, n: int, taken: list[Message], group_id: int | None = None) -> list[Message]:
        """Return messages that were claimed; if a crash is to charge one of them alone, that is written down before.

        Args:
            group_id: of the only group whose messages are wanted, beyond the prefetch, too.
        """
        taken.clear()
        suspect = self._in_hand.deliver(n, self._prefetch if group_id is None else _MOST, taken, group_id)
        if self._ahead_s and taken:
            self._gathers_until = ticks() + _GATHER_S
        if suspect is not None and not self._flusher.write_now(suspect, suspect.announce):
            self._in_hand.put_back(taken)
            taken.clear()
            return []
        return [message for message in taken if self._run_of(message).ended is None]

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until :meth:`stop`, or until none has come for ``idle_timeout``.

        It claims as many as the program will need for ``claim_s``, and gives back what waits longer than a second.
        """
        while (message := self._next(forks.Event())) is not None:
            yield message

    def _next(self, cancelled: Any) -> Message | None:
        self._check_usable()
        until = (now := ticks()) + self._idle_s
        if self._yielded_at is not None:
            self._sizer.record(1, now - self._yielded_at)
        while not self._stopping.is_set() and not cancelled.is_set() and (left_s := until - ticks()) > 0:
            try:
                if messages := self._fetch(1, self._sizer.size, min(left_s, 1.0), cancelled):
                    self._yielded_at = ticks()
                    return messages[0]
            except StoreUnavailable as error:
                log.warning("the consumer of %s/%s waits: %s", *self._names, error)
        self._check_alive()
        return None

    # -- settling ------------------------------------------------------------------------------------------------------

    def ack(self, *messages: Message) -> None:
        """Count messages as done. This is written down within ``ack_interval_s``; :meth:`flush` waits for it.

        Messages that ended are not delivered again, except after a crash within that time.

        Raises:
            NotInHand: one was settled already, or is another consumer's; none was settled.
            RunEnded: one has timed out, and is retried; none was settled.
            FenceLost: the claim has another owner by now, so that the message is delivered again.
            LeaseLost: the lease ran out, and the server cannot be reached; the message may be delivered again.
        """
        self._settle(messages, lambda message, run: Ended(message, ticks() - run.began))

    def nack(
        self,
        *messages: Message,
        delay: float | str | None = None,
        dead: bool = False,
        error: BaseException | str | None = None,
    ) -> None:
        """Count the attempt at messages as failed: they are retried, or become dead letters.

        Args:
            delay: seconds until the next attempt, or text like ``"10s"``; by default the group's ladder decides.
            dead: make them dead letters at once; otherwise they are when they have used up their attempts.
            error: stored with the attempt; an exception as it would be after a handler has raised it.

        Raises:
            ValueError: ``delay`` is not a duration, or given together with ``dead``; none was settled.
            EmsError: as :meth:`ack`.
        """
        if dead and delay is not None:
            raise ValueError(f"nack(delay={delay!r}, dead=True): a dead letter is not retried")
        reason = _reason(delay, dead, error)
        text = describe(error) if isinstance(error, BaseException) else error or str(reason)
        kind = class_name(error if isinstance(error, BaseException) else reason)
        self._settle(messages, lambda message, run: self._failed(message, run, reason, text, kind))

    def release(self, *messages: Message) -> None:
        """Give messages back with no attempt charged; they are delivered again at once, to any consumer.

        Raises:
            EmsError: as :meth:`ack`.
        """
        self._settle(messages, lambda message, run: Ended(message, released=True))

    def extend(self, message: Message, seconds: float) -> None:
        """Let a message stay in hand for at least this many seconds from now.

        Raises:
            EmsError: as :meth:`ack`.
            ValueError: not a valid time span.
        """
        self._check_usable()
        self._run_of(message).extend(seconds)

    def flush(self) -> None:
        """Wait until everything that was settled is written down.

        Raises:
            FenceLost: the claim of a settled message has another owner; the message is delivered again. It is raised
                once for all that was lost since the last call.
            StoreUnavailable: the server could not be reached within ``publish_timeout_s``.
        """
        self._check_usable()
        self._write_down()
        self._in_hand.raise_lost()

    def confirm(self, *messages: Message) -> list[Message]:
        """Wait until what was settled is written down; return those of these messages that are delivered again.

        Their claims have other owners. Unlike :meth:`flush` it tells each caller of the caller's own messages alone.

        Raises:
            NotInHand: one is another consumer's.
            StoreUnavailable: the server could not be reached within ``publish_timeout_s``.
        """
        self._check_usable()
        claims = {(run := self._run_of(message)): run.pulled for message in messages}
        self._write_down()
        lost = [run.message for run, pulled in claims.items() if pulled.lost]
        self._in_hand.forget_lost({pulled for pulled in claims.values() if pulled.lost})
        return lost

    def _write_down(self) -> None:
        timeout_s = self._source.settings.publish_timeout_s
        if not self._flusher.flush(timeout_s):
            raise StoreUnavailable(f"what was settled could not be written down for {timeout_s:g} s")

    def _settle(self, messages: Sequence[Message], end: Callable[[Message, PulledRun], Ended]) -> None:
        self._check_usable()
        runs = [self._run_of(message) for message in messages]
        if len(set(runs)) < len(runs):
            raise NotInHand("a message was given twice; nothing was settled")
        self._in_hand.settle([(run, end(run.message, run)) for run in runs])
        self._claiming.after_settling({run.pulled for run in runs})
        if self._asks and not self._lease.good:
            self._confirm(runs)

    def _confirm(self, runs: Sequence[PulledRun]) -> None:
        """Ask the server at once, because the lease may have run out, for example while the process was stopped."""
        if not self._flusher.flush(_SIDE_S):
            raise LeaseLost("the lease ran out and the server cannot be reached; messages may be delivered again")
        self._in_hand.raise_lost([run.pulled for run in runs])

    def _run_of(self, message: Message) -> PulledRun:
        run = message.run
        if not isinstance(run, PulledRun) or run.pulled.owner is not self._in_hand:
            raise NotInHand(f"{message!r} was not delivered by this consumer")
        return run

    def _failed(self, message: Message, run: PulledRun, error: BaseException, text: str, kind: str) -> Ended:
        ran_s = ticks() - run.began
        ladder = self._ladders[run.pulled.claim.group_id]
        failure = decide(message.offset, message.attempt, error, ladder, ran_s=ran_s, text=text, kind=kind)
        return Ended(message, ran_s, failure)

    def _time_out(self, run: PulledRun, error: BaseException) -> Ended:
        return self._failed(run.message, run, error, text_of(error), class_name(error))

    # -- for coroutines ------------------------------------------------------------------------------------------------

    async def afetch(self, n: int = 1, wait: float = 1.0) -> list[Message]:
        """Fetch messages; see :meth:`fetch`. If it is cancelled, it keeps no message in hand."""
        return await self._fetching(lambda cancelled: self._fetch(n, n, wait, cancelled))

    async def aack(self, *messages: Message) -> None:
        """Ack messages; see :meth:`ack`."""
        await self._in_thread(1, partial(self.ack, *messages))

    async def anack(self, *messages: Message, **how: Any) -> None:
        """Nack messages; see :meth:`nack`."""
        await self._in_thread(1, partial(self.nack, *messages, **how))

    async def arelease(self, *messages: Message) -> None:
        """Release messages; see :meth:`release`."""
        await self._in_thread(1, partial(self.release, *messages))

    async def aextend(self, message: Message, seconds: float) -> None:
        """Extend a message's time; see :meth:`extend`."""
        await self._in_thread(1, partial(self.extend, message, seconds))

    async def aflush(self) -> None:
        """Wait until everything is written down; see :meth:`flush`."""
        await self._in_thread(1, self.flush)

    async def __aenter__(self) -> Self:
        self._pools = [ThreadPoolExecutor(size, f"ems-pull-{size}") for size in (_FETCHERS, 1)]
        return await self._in_thread(1, self.open)

    async def __aexit__(self, *reason: Any) -> None:
        await asyncio.shield(asyncio.to_thread(self.__exit__, *reason))

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield messages; see :meth:`__iter__`."""

        def one(cancelled: Any) -> list[Message]:
            message = self._next(cancelled)
            return [] if message is None else [message]

        while messages := await self._fetching(one):
            yield messages[0]

    async def _fetching(self, fetch: Callable[[Any], list[Message]]) -> list[Message]:
        cancelled = forks.Event()
        future = self._submit(0, partial(fetch, cancelled))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            cancelled.set()
            future.add_done_callback(self._put_back)
            raise

    def _put_back(self, future: Future[list[Message]]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._in_hand.put_back(future.result())

    def _submit(self, pool: int, call: Callable[[], T]) -> Future[T]:
        if not self._pools:
            raise EmsError("coroutines use a consumer inside `async with app.consumer(...) as consumer`")
        return self._pools[pool].submit(call)

    async def _in_thread(self, pool: int, call: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._submit(pool, call))


def _reason(delay: float | str | None, dead: bool, error: BaseException | str | None) -> BaseException:
    """The error by which the ladder decides."""
    text = text_of(error) if isinstance(error, BaseException) else error or "nacked by the consumer"
    if dead:
        return Reject(text)
    if delay is not None:
        return Retry(text, countdown=parse_duration(delay))
    return error if isinstance(error, BaseException) else Retry(text)


def _seconds(name: str, value: float | str) -> float:
    try:
        if (seconds := parse_duration(value)) > 0:
            return seconds
    except ValueError as error:
        raise ConfigError([Problem(name, repr(value), str(error))]) from None
    raise ConfigError([Problem(name, repr(value), "must be more than 0 seconds")])
