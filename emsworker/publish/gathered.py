"""Sends of coroutines that wait for a thread are taken together by the next one that is free, and share a commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial

from emsworker.core.errors import InvalidName, InvalidPriority, MessageTooLarge, TopicRuleError
from emsworker.core.model import NewMessage, Receipt
from emsworker.core.process import forks
from emsworker.core.process.threads import ThreadPool
from emsworker.publish.outgoing import Outgoing

_MOST = 100  # sends in a commit; more of them, ending at once, would delay what else runs in the event loop
_ITS_OWN = (TopicRuleError, InvalidName, InvalidPriority, MessageTooLarge)  # errors of one message; nothing was written


@dataclass(slots=True, eq=False)
class _AwaitedSend:
    """A send, and the coroutine's ``contextvars``, in which its message is made."""

    prepare: Callable[[], Outgoing]
    future: Future[Receipt] = field(default_factory=Future)
    context: Context = field(default_factory=copy_context)


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
        one = _AwaitedSend(prepare)
        with self._lock:
            self._waiting.append(one)
            asks, self._is_awaited = not self._is_awaited, True
        if asks:
            self._ask_for_thread(pool)
        return await pool.wait_for(one.future, name)

    def close(self) -> None:
        """Cancel the sends that no thread has begun."""
        with self._lock:
            waiting, self._waiting, self._is_awaited = self._waiting, deque(), False
        for one in waiting:
            one.future.cancel()

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
        with self._lock:
            taken = [self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST))]
        for one in taken:
            if not one.future.set_running_or_notify_cancel():
                continue
            try:
                outgoing, message = one.context.run(self._make, one.prepare)
            except BaseException as error:
                one.future.set_exception(error)
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
            for one, _ in members:
                one.future.set_exception(error)
            return
        for (one, _), receipt in zip(members, receipts, strict=True):
            one.future.set_result(receipt)
