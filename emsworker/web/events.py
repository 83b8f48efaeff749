"""Server-sent events: an answer that goes on for some seconds, after which the browser comes again for what follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import StreamingResponse

from emsworker.extending.errors import EmsError
from emsworker.extending.processes import ticks

_RETRY_MS = 1000
_PAUSE_S = 0.5
_SILENT = b":\n\n"  # a comment: a client that has gone is noticed

Read = Callable[[], "Events"]
Run = Callable[[Read], Awaitable["Events"]]


@dataclass(frozen=True)
class Events:
    """A part of a stream of events.

    Args:
        text: as it is sent.
        is_last: nothing follows.
    """

    text: bytes
    is_last: bool = False


class EventStream(StreamingResponse):
    """Answer whose events are read again and again.

    It is bounded, because each takes a connection, and access is asked only at its beginning: a browser's EventSource
    comes again a second after the end, and says what it had last.

    Args:
        read: reads what comes next; called on a thread, once at a time.

    Attributes:
        run: calls ``read`` on a thread.
        longest_s: after which it ends.
    """

    run: Run
    longest_s = 0.0

    def __init__(self, read: Read) -> None:
        self._read = read
        super().__init__(self._events(), media_type="text/event-stream")
        self.headers["x-accel-buffering"] = "no"  # nginx would keep events back

    async def _events(self) -> AsyncIterator[bytes]:
        until = ticks() + self.longest_s
        yield f"retry: {_RETRY_MS}\n\n".encode()
        while True:
            try:
                events = await self.run(self._read)
            except EmsError:
                return  # the next request says what is wrong
            yield events.text or _SILENT
            if events.is_last or ticks() + _PAUSE_S >= until:
                return
            await asyncio.sleep(_PAUSE_S)
