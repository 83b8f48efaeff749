"""Time limits of handlers: an exception raised in another thread."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

from emsworker.consume.watch import Watch
from emsworker.core.errors import SoftTimeLimitExceeded

log = logging.getLogger(__name__)

T = TypeVar("T")

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


def send_soft_limit(work: Watch, now: float) -> bool:
    """Raise SoftTimeLimitExceeded in the handler that runs now, once, if its time is up.

    It arrives at the thread's next bytecode: a handler that waits in C code gets it when it returns from there.
    """
    with work.lock:
        limit = work.options.soft_time_limit_s
        if (
            not work.interruptible
            or limit is None
            or work.soft_limit_sent
            or now - work.running_since < limit + work.extension_s
        ):
            return False
        work.soft_limit_sent = True
        _raise_in(ctypes.c_ulong(work.thread_id), ctypes.py_object(SoftTimeLimitExceeded))
        return True


def call_interruptibly(work: Watch, call: Callable[[], T]) -> T:
    """Call a handler; a soft limit arrives inside this call or never, so never in a commit of ours.

    Raises:
        SoftTimeLimitExceeded: the limit passed; it is sent only once, so nothing is pending when this returns.
    """
    process = os.getpid()
    try:
        if work.options.soft_time_limit_s is None:
            return call()
        with work.lock:
            work.interruptible = True
        try:
            return call()
        finally:
            _close(work)
    finally:
        if os.getpid() != process:
            _end_forked()


def _end_forked() -> NoReturn:
    """End a forked process that returns from the handler: the message and the worker belong to its parent."""
    error = sys.exc_info()[1]
    if not isinstance(error, SystemExit):
        log.error("a process that a handler forked came back from the handler; it ends here", exc_info=error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if isinstance(error, SystemExit) and not error.code else 1)


def _close(work: Watch) -> None:
    try:
        with work.lock:
            work.interruptible = False
            if work.soft_limit_sent:
                _raise_in(ctypes.c_ulong(work.thread_id), None)
    except SoftTimeLimitExceeded:  # it arrived right here, and there is only one
        work.interruptible = False
        raise
