"""Sends of coroutines that wait for a thread are taken together by the next one that is free, and share a commit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from emsworker.core.errors import InvalidName, InvalidPriority, MessageTooLarge, TopicRuleError
from emsworker.core.model import NewMessage, Receipt
from emsworker.core.process import forks
from emsworker.core.process.threads import ThreadPool
from emsworker.publish.outgoing import Outgoing

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

log = logging.getLogger(__name__)

_MOST = 100  # sends in a commit; more of them, ending at once, would delay what else runs in the event loop
_ITS_OWN = (TopicRuleError, InvalidName, InvalidPriority, MessageTooLarge)  # errors of one message; nothing was written


@dataclass(slots=True, eq=False)
class _AwaitedSend:
    """A send, and the coroutine's ``contextvars``, in which its message is made.

    Args:
        name: for a warning.
        prepare: returns the message; called by a thread.
        future: its end; only its event loop touches it.
    """

    name: str
    prepare: Callable[[], Outgoing]
    future: Future[Receipt]
    context: Context = field(default_factory=copy_context)
    has_begun: bool = False
    is_dropped: bool = False


class _End(NamedTuple):
    """The end of a send: a receipt, or an error."""

    send: _AwaitedSend
    receipt: Receipt | None = None
    error: BaseException | None = None


class GatheredSends:
    """The sends of coroutines of any number of event loops.

    A thread that begins takes all that wait by then, at most 100. What comes meanwhile is taken by the next thread, so
    nobody waits for others to come. Each send has its own receipt, or its own error.

    Args:
        encode: returns a message as it is stored.
        send: sends messages to a topic, together.
    """

    def __init__(
        self,
        encode: Callable[[Outgoing], NewMessage],
        send: Callable[[str, Sequence[NewMessage]], list[Receipt]],
    ) -> None:
        self._encode, self._send = encode, send
        self._lock = forks.Lock()
        self._start_over()
        forks.after_fork(self._start_over)

    def _start_over(self) -> None:
        self._waiting: deque[_AwaitedSend] = deque()
        self._is_awaited = False  # a thread has been asked for, and has not made its messages

    async def send(self, pool: ThreadPool, prepare: Callable[[], Outgoing], name: str) -> Receipt:
        """Send one message, and return after its commit; for a cancellation see :meth:`ThreadPool.run`.

        Args:
            pool: the threads.
            prepare: returns the message; called by a thread.
            name: of the send, for a warning.
        """
        from asyncio import CancelledError, get_running_loop  # only a program with coroutines has loaded it

        one = _AwaitedSend(name, prepare, get_running_loop().create_future())
        with self._lock:
            self._waiting.append(one)
            asks, self._is_awaited = not self._is_awaited, True
        if asks:
            self._ask_for_thread(pool)
        try:
            return await one.future
        except CancelledError:
            with self._lock:
                one.is_dropped = not one.has_begun
            raise

    def close(self) -> None:
        """Cancel the sends that no thread has begun."""
        with self._lock:
            waiting, self._waiting, self._is_awaited = self._waiting, deque(), False
        for one in waiting:
            _call_in(one.future.get_loop(), one.future.cancel)

    def _ask_for_thread(self, pool: ThreadPool) -> None:
        try:
            pool.start(partial(self._work, pool))
        except BaseException:  # the program ends, and has no threads any more
            self.close()
            raise

    def _work(self, pool: ThreadPool) -> None:
        """Send all that wait; the next thread begins when this one has made its messages.

        Threads that all make messages at once would keep the interpreter's lock from the event loop.
        """
        together: dict[str, list[tuple[_AwaitedSend, NewMessage]]] = {}
        alone: list[tuple[str, _AwaitedSend, NewMessage]] = []  # by way of the outbox
        for one in self._take():
            try:
                outgoing, message = one.context.run(self._make, one.prepare)
            except BaseException as error:
                _tell([_End(one, error=error)])
                continue
            if message.is_direct:
                together.setdefault(outgoing.topic, []).append((one, message))
            else:
                alone.append((outgoing.topic, one, message))
        try:
            self._let_the_next_begin(pool)
        finally:
            for topic, members in together.items():
                self._publish(topic, members)
            for topic, one, message in alone:
                self._publish(topic, [(one, message)])

    def _take(self) -> list[_AwaitedSend]:
        """Begin the sends that wait, but for those whose coroutines were cancelled."""
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
            begun = [one for one in taken if not one.is_dropped]
            for one in begun:
                one.has_begun = True
        return begun

    def _let_the_next_begin(self, pool: ThreadPool) -> None:
        with self._lock:
            asks = self._is_awaited = bool(self._waiting)
        if asks:
            self._ask_for_thread(pool)

    def _make(self, prepare: Callable[[], Outgoing]) -> tuple[Outgoing, NewMessage]:
        outgoing = prepare()
        return outgoing, self._encode(outgoing)

    def _publish(self, topic: str, members: Sequence[tuple[_AwaitedSend, NewMessage]]) -> None:
        try:
            receipts = self._send(topic, [message for _, message in members])
        except BaseException as error:
            if len(members) > 1 and isinstance(error, _ITS_OWN):  # halves find out whose it is
                half = len(members) // 2
                self._publish(topic, members[:half])
                self._publish(topic, members[half:])
                return
            _tell([_End(one, error=error) for one, _ in members])
            return
        _tell([_End(one, receipt) for (one, _), receipt in zip(members, receipts, strict=True)])


def _tell(ends: Sequence[_End]) -> None:
    """Tell coroutines how their sends have ended: each event loop is woken once, not for each of them."""
    by_loop: dict[AbstractEventLoop, list[_End]] = {}
    for end in ends:
        by_loop.setdefault(end.send.future.get_loop(), []).append(end)
    for loop, its_ends in by_loop.items():
        if not _call_in(loop, partial(_resolve, its_ends)):
            _warn(its_ends)


def _call_in(loop: AbstractEventLoop, call: Callable[[], object]) -> bool:
    """Have an event loop call something soon; return false if it is closed."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        return False
    return True


def _resolve(ends: Iterable[_End]) -> None:
    for end in ends:
        if end.send.future.done():
            _warn([end])
        elif end.error is not None:
            end.send.future.set_exception(end.error)
        elif end.receipt is not None:
            end.send.future.set_result(end.receipt)


def _warn(ends: Iterable[_End]) -> None:
    for end in ends:
        if end.error is not None:
            log.warning("%s failed after its coroutine was cancelled: %s", end.send.name, end.error)
