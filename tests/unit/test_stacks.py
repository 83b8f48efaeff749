"""Where a handler is that runs too long, and what is raised in it from outside."""

import asyncio
import random
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from emsworker.consume import stacks
from emsworker.consume.watch import Watch
from emsworker.core.codec import Decoder
from emsworker.core.errors import RunCancelled, SoftTimeLimitExceeded, TimeLimitExceeded, error_line
from emsworker.core.model import Message
from emsworker.core.process.clock import ticks
from emsworker.tasks.options import HandlerOptions


def _handler(entered: threading.Event, leave: threading.Event, depth: int) -> None:
    if depth:
        return _handler(entered, leave, depth - 1)
    entered.set()
    leave.wait(30)
    return None


def test_the_stack_of_a_thread_is_bounded_and_reads_as_a_traceback() -> None:
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=_handler, args=(entered, leave, 800))
    thread.start()
    entered.wait(30)
    stack = stacks.of_thread(thread.ident or 0)
    leave.set()
    thread.join()
    error = TimeLimitExceeded("ran for 3.0 s; mysql://u:secret@host/db")
    text = stacks.text_of_stack(stack, error)
    assert text.startswith("Traceback (most recent call last):\n") and len(text) < 8000
    assert "leave.wait(30)" in text and 'threading.py"' in text, "the innermost frames are there, whoever's they are"
    assert error_line(text) == "emsworker.core.errors.TimeLimitExceeded: ran for 3.0 s; mysql://u:secret@host/db"
    assert stacks.of_thread(thread.ident or 0) == [], "a thread that has ended"


async def _inner() -> None:
    await asyncio.sleep(30)


async def _outer() -> None:
    await _inner()


def test_the_stack_of_a_coroutine_goes_down_to_what_it_awaits() -> None:
    async def look() -> list[str]:
        coroutine = _outer()
        task = asyncio.ensure_future(coroutine)
        await asyncio.sleep(0)
        names = [frame.name for frame in stacks.of_coroutine(coroutine)]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return names

    assert asyncio.run(look()) == ["_outer", "_inner", "sleep"]


def _spin(rounds: int) -> None:
    for _ in range(rounds):
        pass


def test_what_is_raised_from_outside_arrives_in_the_handler_or_never() -> None:
    """Cancels and soft limits come at any time; none of them arrives in what follows the handler."""
    message = Message("t", 0, (5, b"u" * 16, None, None, b"", b"", "2026-01-01"), Decoder(("json",)))
    watch = Watch(threading.get_ident(), 60.0)
    ended = threading.Event()

    def interrupt() -> None:
        chance = random.Random(1)  # a thread has the interpreter for many rounds, of which the first one counts
        while not ended.is_set():
            if chance.random() < 0.5:
                watch.cancel(watch.running_since)
            else:
                watch.send_soft_limit(ticks() + 100)

    other = threading.Thread(target=interrupt)
    other.start()
    seen: dict[str, int] = {}
    lengths = random.Random(2)
    try:
        began, wanted = ticks(), {"RunCancelled", "SoftTimeLimitExceeded"}
        while ticks() - began < (0.7 if seen.keys() >= wanted else 30.0):
            with watch.lock:
                watch.begin([message], HandlerOptions(soft_time_limit_s=1.0), ticks())
            try:
                watch.call_interruptibly(lambda: _spin(lengths.choice((0, 200, 20_000, 200_000))))
                how = "ended"
            except (RunCancelled, SoftTimeLimitExceeded) as error:
                how = type(error).__name__
            _spin(50)  # as code of ours that must not be interrupted
            seen[how] = seen.get(how, 0) + 1
    finally:
        ended.set()
        other.join()
    assert seen.keys() >= wanted, seen


def test_a_process_in_which_a_limit_came_too_late_can_be_debugged() -> None:
    """Python 3.11 would spin for ever at the first call that a profiler, a debugger or coverage is told of."""
    late = f"from {__name__} import *\ntest_what_is_raised_from_outside_arrives_in_the_handler_or_never()\n"
    code = f"{late}import sys\nsys.setprofile(lambda *event: None)\n(lambda: 1)()\nsys.setprofile(None)\nprint('ends')"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "ends\n"), done.stderr


def test_a_handler_that_wants_a_flag_or_gets_a_batch_is_not_interrupted() -> None:
    message = Message("t", 0, (5, b"u" * 16, None, None, b"", b"", "2026-01-01"), Decoder(("json",)))
    options: list[dict[str, Any]] = [{"on_cancel": "flag"}, {"batch": 5}]
    for one in options:
        watch = Watch(threading.get_ident(), 60.0)
        watch.begin([message], HandlerOptions(**one), 7.0)

        def handler(watch: Watch = watch) -> str:
            watch.cancel(7.0)
            _spin(10)
            return "done"

        assert watch.call_interruptibly(handler) == "done"
