"""The stacks of handlers that run too long, as a traceback prints them.

The frames that call handlers are left out: those of EMS, of threads and of event loops.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable, Sequence
from itertools import dropwhile
from types import FrameType
from typing import Any

from emsworker.core.terminal_text import shortened
from emsworker.core.url import redact

_CALLERS = ("emsworker", "threading", "concurrent", "asyncio", "selectors")
_MOST = 7500  # characters; with the error's own line it is what the store keeps of an error
_MOST_FRAMES = 200  # of the innermost: a recursion may have many

Stack = Sequence[traceback.FrameSummary]


def of_thread(thread_id: int) -> Stack:
    """Return the stack of a thread, the outermost call first; empty if no handler runs in it."""
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread_id)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return _stack(reversed(frames))


def of_coroutine(coroutine: Any) -> Stack:
    """Return the stack of a coroutine that is suspended, down to what it awaits."""
    frames: list[FrameType] = []
    while (frame := _of(coroutine, "cr_frame", "gi_frame", "ag_frame")) is not None:
        frames.append(frame)
        coroutine = _of(coroutine, "cr_await", "gi_yieldfrom", "ag_await")
    return _stack(frames)


def _of(awaited: Any, *names: str) -> Any:
    return next((value for name in names if (value := getattr(awaited, name, None)) is not None), None)


def _stack(frames: Iterable[FrameType]) -> Stack:
    own = list(dropwhile(_is_caller, frames))[-_MOST_FRAMES:]
    return traceback.StackSummary.extract((frame, frame.f_lineno or 0) for frame in own)


def _is_caller(frame: FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _CALLERS


def text_of_stack(stack: Stack, error: BaseException) -> str:
    """Return the text of an error that has happened at a stack, without passwords in URLs and a long one's middle."""
    header = "Traceback (most recent call last):\n" if stack else ""
    frames = shortened(redact("".join(traceback.format_list(list(stack)))), _MOST)
    return header + frames + "".join(traceback.format_exception_only(error)).strip()


def place_of(stack: Stack) -> str:
    """Return where the innermost call of a stack is, in a line."""
    return f"{stack[-1].name} ({stack[-1].filename}:{stack[-1].lineno})"
