"""An app whose poison messages end their process in ways that no handler reports, beside innocent ones elsewhere."""

import asyncio
import contextlib
import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from emsworker import Ems, Message
from tests.process.record import note

app = Ems("poison", jitter=0.0)


async def _exit() -> None:
    sys.exit(3)


def _take_the_pipe() -> None:
    """Close the pipe to the supervisor and open something else under its number, as files do after ``closerange``."""
    other = os.open(os.devnull, os.O_WRONLY)
    for one in [*Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):  # the one that lists them
            number, is_pipe = int(one.name), str(one.readlink()).startswith("pipe:")
            if number > 2 and is_pipe and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY:
                os.dup2(other, number)


_IN_LOOP: dict[str, Callable[[asyncio.AbstractEventLoop], object]] = {
    "task_exits": lambda loop: loop.create_task(_exit()),
    "callback_exits": lambda loop: loop.call_soon(sys.exit),
    "loop_stops": lambda loop: loop.stop(),
}
_IN_THREAD: dict[str, Callable[[], object]] = {
    "exit": lambda: os._exit(1),
    "close_files": lambda: os.closerange(3, 4096),
    "take_the_pipe": _take_the_pipe,
}


@app.subscribe("loops", "loops", max_attempts=2, ladder="100ms")
async def loops(message: Message) -> None:
    note("start", n=message.body["n"])
    if (deed := message.body.get("do")) is not None:
        _IN_LOOP[deed](asyncio.get_running_loop())
        await asyncio.sleep(60)
    note("end", n=message.body["n"])


@app.subscribe("threads", "threads", max_attempts=2, ladder="100ms")
def threads(message: Message) -> None:
    note("start", n=message.body["n"])
    if (deed := message.body.get("do")) is not None:
        _IN_THREAD[deed]()
        time.sleep(message.body.get("s", 0))
    note("end", n=message.body["n"])


@app.subscribe("innocent", "innocent", max_attempts=1)
def innocent(message: Message) -> None:
    note("start", n=message.body["n"])
    time.sleep(message.body["s"])
    note("end", n=message.body["n"])


@app.subscribe("innocent_loops", "innocent_loops", max_attempts=1)
async def innocent_loop(message: Message) -> None:
    note("start", n=message.body["n"])
    await asyncio.sleep(message.body["s"])
    note("end", n=message.body["n"])


@app.subscribe("deadly", "deadly", max_attempts=3)
def deadly(message: Message) -> None:
    note("start", n=message.body["n"])
    _IN_THREAD[message.body["do"]]()
