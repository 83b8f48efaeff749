"""The error for which a consumer rejects a message, which kombu does not hand over."""

from __future__ import annotations

import sys

_FRAMES = 8


def error_in_hand() -> BaseException | None:
    """Return the error that is being handled, or the one that Celery's ``Request.on_failure`` was called with."""
    error = sys.exc_info()[1]
    if error is not None:
        return error
    frame = sys._getframe(1)
    for _ in range(_FRAMES):
        if frame.f_back is None:
            break
        frame = frame.f_back
        if frame.f_code.co_name == "on_failure":
            error = getattr(frame.f_locals.get("exc_info"), "exception", None)
            return error if isinstance(error, BaseException) else None
    return None
