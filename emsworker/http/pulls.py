"""Groups that clients pull from: one consumer for each, one fetch at a time for all clients that wait.

What is kept here is touched by the thread of the event loop. A client that waits holds no thread: while any waits for
messages of a group, one thread fetches for all of them, and what comes is handed out in the order of their requests.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from emsworker.extending.consuming import PullConsumer, PulledRun
from emsworker.extending.errors import EmsError, FenceLost, NotInHand, StoreUnavailable
from emsworker.extending.processes import ticks
from emsworker.extending.values import Message
from emsworker.http.bodies import incoming
from emsworker.http.faults import HttpFault, fault_of
from emsworker.http.workers import CallThreads

_SLICE_S = 0.5  # of a fetch, after which clients that came meanwhile are counted in
_IDLE_S, _SWEEP_S = 60.0, 5.0
_LOOK_S = 0.05
_REST_S = 5.0
_STOPPING = "this server stops; ask again"

_log = logging.getLogger(__name__)

Open = Callable[[str, str], PullConsumer]
Act = Callable[[PullConsumer, Message], None]


@dataclass
class HeldMessage:
    """A message that was handed to a client, and what became of it.

    Attributes:
        message: ``None`` when it is not needed any more, so that its body is not kept.
        act: by which it was settled, if it was.
        is_confirmed: that is written down.
        error: why it was not, or cannot be settled any more.
    """

    message: Message | None
    act: str | None = None
    is_confirmed: bool = False
    error: EmsError | None = None

    @property
    def is_held(self) -> bool:
        """True until it is settled or lost, or its time is over."""
        return self.message is not None and _ended(self.message) is None

    @property
    def is_needed(self) -> bool:
        """True until it is no longer in hand, and what it was settled by is written down."""
        return self.is_held or (self.act is not None and not self.is_confirmed)

    def confirm(self, error: EmsError | None) -> None:
        """Note that what it was settled by is written down, or that this is not possible."""
        self.is_confirmed, self.error, self.message = True, error, None

    def let_go(self) -> None:
        """Forget the message if it has timed out or was lost, and was not settled."""
        if self.message is not None and self.act is None:
            self.error = _ended(self.message)
            self.message = None if self.error is not None else self.message


def _ended(message: Message) -> EmsError | None:
    return message.run.ended if isinstance(message.run, PulledRun) else NotInHand("it is delivered again")


@dataclass
class FetchRequest:
    """A client that waits for messages.

    Args:
        n: the most that it takes.
        until: when it gets an empty answer, by the clock of :func:`ticks`.
        lease_s: seconds that it wants to keep each.

    Attributes:
        was_looked_for: a fetch that began after it has found nothing.
    """

    n: int
    until: float
    lease_s: float
    was_looked_for: bool = False
    answer: asyncio.Future[list[tuple[str, dict[str, Any]]]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


Found = tuple[Message, dict[str, Any]]


class PulledGroup:
    """A group, its consumer, the clients that wait, and the messages that clients have in hand.

    Args:
        name: the beginning of its receipts.
        topic, group: the group.
        open: opens its consumer.
        fetching: the threads that fetch.
        most: the most messages in hand.
    """

    def __init__(self, name: str, topic: str, group: str, open: Open, fetching: CallThreads, most: int) -> None:
        self.name, self.topic, self.group = name, topic, group
        self._open, self._fetching, self._most = open, fetching, most
        self._requests: deque[FetchRequest] = deque()
        self._held: dict[str, HeldMessage] = {}
        self._consumer: PullConsumer | None = None
        self._pump: asyncio.Task[None] | None = None
        self._used_at = ticks()

    @property
    def waiting(self) -> int:
        """The number of clients that wait."""
        return len(self._requests)

    @property
    def in_hand(self) -> int:
        """The number of messages that clients have in hand."""
        return sum(held.is_held for held in self._held.values())

    @property
    def is_idle(self) -> bool:
        """True if nobody has used it for a minute, and nothing is in hand."""
        return not self._is_fetching and ticks() - self._used_at > _IDLE_S and self.in_hand == 0

    # -- fetching ------------------------------------------------------------------------------------------------------

    async def fetch(
        self, n: int, wait_s: float, lease_s: float, gone: Callable[[], Awaitable[object]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Return receipts and messages as soon as there are some, and none if none has come in time.

        Args:
            gone: waits until the client has gone; what it would have got goes back.

        Raises:
            HttpFault: the group cannot be read.
        """
        request = FetchRequest(n, ticks() + wait_s, lease_s)
        self._requests.append(request)
        if not self._is_fetching:
            self._pump = asyncio.create_task(self._fetch_for_all())
        leaving = asyncio.ensure_future(gone())
        either: list[asyncio.Future[Any]] = [request.answer, leaving]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                await self._give_back(request)
                return []
            return request.answer.result()
        except asyncio.CancelledError:
            await self._give_back(request)
            raise
        finally:
            leaving.cancel()
            self._used_at = ticks()

    async def _give_back(self, request: FetchRequest) -> None:
        if not request.answer.done():
            request.answer.cancel()
        elif not request.answer.cancelled() and request.answer.exception() is None:
            receipts = [receipt for receipt, _ in request.answer.result()]
            held = [self._held.pop(receipt, None) for receipt in receipts]
            await self._release([one.message for one in held if one is not None and one.message is not None])

    async def _fetch_for_all(self) -> None:
        """Fetch until no client waits; a consumer that fails is closed, and another one opened."""
        while self._still_waiting():
            try:
                if self._consumer is None:
                    self._consumer = await self._fetching.run(lambda: self._open(self.topic, self.group))
                await self._fetch_once(self._consumer)
            except HttpFault as fault:
                self._refuse(fault)
            except EmsError as error:
                await self.close(fault_of(error, (503, "unavailable")))
            except Exception:
                _log.exception("nothing can be fetched from %s/%s", self.topic, self.group)
                await self.close(HttpFault(500, "failed", "that failed; the log of the server tells why"))

    def _still_waiting(self) -> bool:
        """Answer those whose time is over; return whether others wait."""
        for request in self._requests:
            if not request.answer.done() and request.was_looked_for and request.until <= ticks():
                request.answer.set_result([])
        self._requests = deque(one for one in self._requests if not one.answer.done())
        return bool(self._requests)

    async def _fetch_once(self, consumer: PullConsumer) -> None:
        requests = list(self._requests)
        n = min(sum(one.n for one in requests), self._most)
        wait_s = max(0.0, min(_SLICE_S, min(one.until for one in requests) - ticks()))

        def fetch() -> list[Found]:
            return [(message, incoming(message)) for message in consumer.fetch(n, wait_s)]

        try:
            found = await self._fetching.run(fetch)
        except StoreUnavailable as error:
            for request in requests:
                if not request.answer.done() and request.until <= ticks():
                    request.answer.set_exception(fault_of(error))
            return
        for request in requests:
            request.was_looked_for = True
        left = self._hand_out(deque(found))
        await self._release([message for message, _ in left])

    def _hand_out(self, found: deque[Found]) -> Iterable[Found]:
        """Give messages to those who wait, in their order; return those that nobody wants any more."""
        self._forget_ended()
        for request in self._requests:
            if found and not request.answer.done():
                parts = [found.popleft() for _ in range(min(request.n, len(found)))]
                request.answer.set_result([self._hold(message, said, request.lease_s) for message, said in parts])
        return found

    def _hold(self, message: Message, said: dict[str, Any], lease_s: float) -> tuple[str, dict[str, Any]]:
        receipt = f"{self.name}.{secrets.token_urlsafe(12)}"
        self._held[receipt] = HeldMessage(message)
        assert isinstance(message.run, PulledRun)
        with suppress(EmsError):  # an ack will tell the client that it is lost
            message.run.hold(lease_s)
        return receipt, said

    def _forget_ended(self) -> None:
        """Forget some of what is no longer in hand; until then a repeated ack of it is answered as the first one."""
        if len(self._held) > 2 * self._most:
            self._held = {receipt: held for receipt, held in self._held.items() if held.is_needed}

    def let_go(self) -> None:
        """Forget the bodies of messages that are no longer in hand."""
        for held in self._held.values():
            held.let_go()

    async def _release(self, messages: Sequence[Message]) -> None:
        consumer = self._consumer
        if not messages or consumer is None:
            return

        def release() -> None:
            for message in messages:
                with suppress(EmsError):  # its time was over meanwhile, or it has another owner
                    consumer.release(message)

        await self._fetching.run(release)

    def _refuse(self, fault: HttpFault) -> None:
        for request in self._requests:
            if not request.answer.done():
                request.answer.set_exception(fault)
        self._requests.clear()

    @property
    def is_open(self) -> bool:
        """False if it could not be opened, or was closed."""
        return self._consumer is not None or self._is_fetching

    @property
    def _is_fetching(self) -> bool:
        return self._pump is not None and not self._pump.done()

    async def close(self, fault: HttpFault) -> None:
        """Answer all who wait, and give back what is in hand."""
        consumer, self._consumer = self._consumer, None
        self._held.clear()
        self._refuse(fault)
        if consumer is None:
            return

        def close() -> None:
            try:
                consumer.close()
            except EmsError as error:
                _log.warning("the consumer of %s/%s was closed with an error: %s", self.topic, self.group, error)

        await self._fetching.run(close)

    def turn_away(self) -> None:
        """Answer all who wait, because the server stops."""
        self._refuse(HttpFault(503, "stopping", _STOPPING))

    async def rest(self) -> None:
        """Wait until the fetch that is under way has ended."""
        if self._pump is not None:
            await asyncio.wait([self._pump], timeout=_REST_S)

    # -- settling ------------------------------------------------------------------------------------------------------

    def find(self, receipt: str) -> HeldMessage | None:
        """Return the message of a receipt."""
        return self._held.get(receipt)

    def settle(
        self, held: Mapping[str, HeldMessage], name: str, act: Act, *, confirms: bool = True
    ) -> dict[str, EmsError]:
        """Settle messages, and return the errors of those for which that is not possible; called on a thread.

        One that was settled by the same act before is so again: its client has not heard the answer.

        Args:
            name: of the act.
            confirms: wait until it is written down.

        Raises:
            StoreUnavailable: it is not known whether it was written down; ask again.
        """
        consumer, self._used_at = self._consumer, ticks()
        if consumer is None:
            return {receipt: _closed() for receipt in held}
        failed: dict[str, EmsError] = {}
        for receipt, one in held.items():
            try:
                self._settle(consumer, one, name, act, confirms)
            except EmsError as error:
                failed[receipt] = error
        if confirms:
            left = {receipt: one for receipt, one in held.items() if receipt not in failed and not one.is_confirmed}
            self._confirm(consumer, left)
            failed |= {receipt: one.error for receipt, one in left.items() if one.error is not None}
        return failed

    @staticmethod
    def _settle(consumer: PullConsumer, one: HeldMessage, name: str, act: Act, confirms: bool) -> None:
        if confirms and one.act == name and (one.error is None or not one.is_confirmed):
            return
        if one.message is None:
            raise one.error or NotInHand(f"it was settled already, by {one.act}")
        act(consumer, one.message)
        if confirms:
            one.act = name

    @staticmethod
    def _confirm(consumer: PullConsumer, settled: Mapping[str, HeldMessage]) -> None:
        messages = [one.message for one in settled.values() if one.message is not None]
        lost = {id(message) for message in consumer.confirm(*messages)} if messages else set()
        for one in settled.values():
            one.confirm(FenceLost("another owner has it; it is delivered again") if id(one.message) in lost else None)


def _closed() -> EmsError:
    return NotInHand("it is no longer in hand; it was given back")


class GroupPulls:
    """The groups that clients pull from.

    Args:
        open: opens a consumer of a topic and a group.
        most_groups: the most that are open at once, because each has connections of its own.
        most_waiting: the most clients that wait.
        most_in_hand: the most messages of a group in hand.
    """

    def __init__(self, open: Open, most_groups: int, most_waiting: int, most_in_hand: int) -> None:
        self._open, self._most_in_hand = open, most_in_hand
        self._most_groups, self._most_waiting = most_groups, most_waiting
        self._fetching = CallThreads("ems-http-fetch", most_groups, 4 * most_groups + most_waiting)
        self._groups: dict[tuple[str, str], PulledGroup] = {}
        self._by_name: dict[str, PulledGroup] = {}
        self._instance, self._made = secrets.token_hex(4), 0
        self._sweeper: asyncio.Task[None] | None = None
        self._stops = False

    def groups(self) -> Collection[PulledGroup]:
        """Return those that are open."""
        return list(self._groups.values())

    @property
    def waiting(self) -> int:
        """The number of clients that wait."""
        return sum(one.waiting for one in self._groups.values())

    async def fetch(
        self, topic: str, group: str, n: int, wait_s: float, lease_s: float, gone: Callable[[], Awaitable[object]]
    ) -> list[tuple[str, dict[str, Any]]]:
        """Fetch messages; see :meth:`PulledGroup.fetch`.

        Raises:
            HttpFault: too many clients wait, or too many groups are open; or the group cannot be read.
        """
        if self._stops:
            raise HttpFault(503, "stopping", _STOPPING)
        if self.waiting >= self._most_waiting:
            text = f"as many clients wait as --waiting {self._most_waiting} allows; ask again later, or another server"
            raise HttpFault(503, "busy", text)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        pulled = self._groups.get((topic, group)) or self._add(topic, group)
        try:
            return await pulled.fetch(n, wait_s, lease_s, gone)
        finally:
            if not pulled.is_open:
                self._forget(pulled)

    def _add(self, topic: str, group: str) -> PulledGroup:
        if len(self._groups) >= self._most_groups:
            text = f"as many groups are open as --groups {self._most_groups} allows; ask again later, or another server"
            raise HttpFault(503, "busy", text)
        self._made += 1
        name = f"{self._instance}-{self._made}"
        made = PulledGroup(name, topic, group, self._open, self._fetching, self._most_in_hand)
        self._groups[topic, group] = self._by_name[name] = made
        return made

    def _forget(self, pulled: PulledGroup) -> None:
        if self._groups.get((pulled.topic, pulled.group)) is pulled:
            del self._groups[pulled.topic, pulled.group]
        self._by_name.pop(pulled.name, None)

    def find(self, receipt: str) -> tuple[PulledGroup, HeldMessage] | None:
        """Return the group and the message of a receipt, if it is one of this server that is known still."""
        pulled = self._by_name.get(receipt.partition(".")[0])
        held = pulled.find(receipt) if pulled is not None else None
        return (pulled, held) if pulled is not None and held is not None else None

    async def _sweep(self) -> None:
        """Close the groups that nobody uses."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for pulled in self.groups():
                pulled.let_go()
            for pulled in [one for one in self.groups() if one.is_idle]:
                self._forget(pulled)
                await pulled.close(HttpFault(503, "busy", "the group is opened anew; ask again"))

    async def end(self, grace_s: float) -> None:
        """Take no more requests, wait until clients have settled what they have in hand, and give the rest back."""
        self._stops = True
        for pulled in self._groups.values():
            pulled.turn_away()
        until = ticks() + grace_s
        while ticks() < until and any(one.in_hand for one in self._groups.values()):
            await asyncio.sleep(_LOOK_S)
        if self._sweeper is not None:
            self._sweeper.cancel()
        await asyncio.gather(*[one.rest() for one in self._groups.values()])
        closing = [one.close(HttpFault(503, "stopping", _STOPPING)) for one in self._groups.values()]
        await asyncio.gather(*closing)
        self._fetching.close()
