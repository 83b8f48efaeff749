"""Ends of the sends of coroutines that share a commit."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from emsworker.core.errors import PublishTimeout
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage, Receipt
from emsworker.core.process.threads import ThreadPool
from emsworker.publish.gathered import GatheredSends
from emsworker.publish.outgoing import Outgoing
from tests.support.waiting import until

_SLOW_S = 60.0


class _Commits:
    """What sends messages: each commit waits until it may go on, and fails if it is told to."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def send(self, topic: str, messages: Sequence[NewMessage]) -> list[Receipt]:
        self.sizes.append(len(messages))
        self.begun.set()
        assert self.may_end.wait(_SLOW_S)
        if self.error is not None:
            raise self.error
        return [Receipt(message.body.decode(), topic, 0, 1, True) for message in messages]


@contextmanager
def _gathered(commits: _Commits) -> Iterator[Callable[[int], Any]]:
    def encode(outgoing: Outgoing) -> NewMessage:
        return NewMessage(new_uid(), None, None, b"{}", str(outgoing.body).encode())

    pool, sends = ThreadPool(4), GatheredSends(encode, commits.send)
    yield lambda number: sends.send(pool, lambda: Outgoing("t", number), f"send {number}")
    commits.may_end.set()
    sends.close()
    pool.close()


def test_an_event_loop_is_woken_once_for_each_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = _Commits()
    commits.may_end.set()

    async def main(send: Callable[[int], Any]) -> list[Receipt]:
        loop, wakes = asyncio.get_running_loop(), list[object]()
        call_soon = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: wakes.append(args) or call_soon(*args))
        receipts: list[Receipt] = await asyncio.gather(*map(send, range(300)))
        assert len(wakes) == len(commits.sizes) < 150
        return receipts

    with _gathered(commits) as send:
        assert [receipt.id for receipt in asyncio.run(main(send))] == [str(number) for number in range(300)]


def test_a_failure_is_raised_in_its_coroutine_or_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    commits = _Commits()
    commits.error = PublishTimeout("the server has gone")

    async def main(send: Callable[[int], Any]) -> list[object]:
        sends = [asyncio.ensure_future(send(number)) for number in range(3)]
        await asyncio.to_thread(commits.begun.wait, _SLOW_S)
        async with asyncio.timeout(_SLOW_S):
            while sum(commits.sizes) < 3:
                await asyncio.sleep(0)
        sends[1].cancel()
        await asyncio.wait([sends[1]])
        commits.may_end.set()
        return [*await asyncio.gather(*sends, return_exceptions=True)]

    with _gathered(commits) as send:
        ended = asyncio.run(main(send))
    assert [type(one) for one in ended] == [PublishTimeout, asyncio.CancelledError, PublishTimeout]
    assert caplog.messages == ["send 1 failed after its coroutine was cancelled: the server has gone"]


def test_a_send_outlives_its_event_loop_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    commits = _Commits()
    commits.error = PublishTimeout("the server has gone")

    async def leave(send: Callable[[int], Any]) -> None:
        leaving.append(asyncio.ensure_future(send(0)))
        await asyncio.to_thread(commits.begun.wait, _SLOW_S)

    leaving: list[object] = []
    with _gathered(commits) as send:
        asyncio.run(leave(send))  # which cancels what still runs
        commits.may_end.set()
        until(lambda: caplog.messages, _SLOW_S, "the warning")
        commits.error = None
        assert asyncio.run(send(1)).id == "1"
    assert caplog.messages == ["send 0 failed after its coroutine was cancelled: the server has gone"]
