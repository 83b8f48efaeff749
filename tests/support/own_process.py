"""Tests with the mark ``own_process`` run in a process of their own, forked when their fixtures are there.

They raise exceptions at places where Python does not expect any. What that leaves in the interpreter, a lock that stays
taken or a crash, must fail that test and no other. They run in a new thread, whose stack is as short as that of a
program: Python 3.11 does not survive some exceptions where a stack as deep as that of pytest grows by another part.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import IO

import pytest

from emsworker.core.process.scratch import open_scratch

_FAILED, _SKIPPED = 1, 2


def run_if_marked(item: pytest.Function) -> bool | None:
    """Run a test with the mark; None if it has none, so that pytest runs it."""
    if item.get_closest_marker("own_process") is None:
        return None
    arguments = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    with open_scratch() as told:
        code = _run(lambda: item.obj(**arguments), told)
        told.seek(0)
        text = told.read().decode(errors="replace")
    if code == _SKIPPED:
        pytest.skip(text)
    if code:
        why = text or f"its process was ended by {signal.Signals(-code).name}" if code < 0 else text
        pytest.fail(why, pytrace=False)
    return True


def _run(test: Callable[[], object], told: IO[bytes]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os._exit(_in_thread(test, told.fileno()))
    ended = False
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        ended = True
    finally:
        if not ended:  # it took too long: the process tells where each of its threads is
            os.kill(pid, signal.SIGABRT)
            os.waitpid(pid, 0)
    return code


def _in_thread(test: Callable[[], object], told: int) -> int:
    codes = [_FAILED]

    def run() -> None:
        text = ""
        try:
            test()
            codes[0] = 0
        except pytest.skip.Exception as skipped:
            codes[0], text = _SKIPPED, str(skipped)
        except BaseException:
            text = traceback.format_exc()
        os.write(told, text.encode(errors="replace"))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    sys.stdout.flush()
    sys.stderr.flush()
    return codes[0]
