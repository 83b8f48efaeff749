"""Time limits of handlers: an exception raised in another thread."""

from __future__ import annotations

import ctypes

from emsworker.core.errors import SoftTimeLimitExceeded
from emsworker.runtime.work import Work

_raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc


def send_soft_limit(work: Work, now: float) -> bool:
    """Raise SoftTimeLimitExceeded in the handler that runs now, once, if its time is up.

    It arrives at the thread's next bytecode: a handler that waits in C code gets it when it returns from there.
    """
    with work.lock:
        limit = work.options.soft_time_limit_s
        if not work.armed or limit is None or work.soft_limit_sent or now - work.running_since < limit:
            return False
        work.soft_limit_sent = True
        _raise_in(ctypes.c_ulong(work.thread_id), ctypes.py_object(SoftTimeLimitExceeded))
        return True


def disarm(work: Work) -> bool:
    """The handler has ended: an exception that was sent and has not arrived must not hit what comes after it.

    Returns:
        whether the limit was sent, arrived or not.
    """
    while True:
        try:
            with work.lock:
                sent, work.armed = work.soft_limit_sent, False
                if sent:
                    _raise_in(ctypes.c_ulong(work.thread_id), None)
            return sent
        except SoftTimeLimitExceeded:  # it arrived right here; none comes after it
            continue
