"""The errors for which messages are rejected, which kombu does not hand over.

A worker of Celery learns of a failure in ``Request.on_failure``, and rejects the message later, from its event loop. So
that method is wrapped: it notes the error on the message's channel first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from emsworker.extending.values import counted


@runtime_checkable
class NotesErrors(Protocol):
    """A channel that keeps the error of a message until the message is rejected."""

    def note_error(self, delivery_tag: int, error: BaseException) -> None:
        """Note why a message will be rejected."""
        ...


class RemoteTraceback(Exception):
    """The traceback of a pool's process, which comes as text; the cause of the error that was raised there."""


class Requeued(Exception):
    """A consumer returned a message to its queue unacknowledged, and gave no error.

    Args:
        deliveries: of the message so far.
    """

    def __init__(self, deliveries: int) -> None:
        times = counted(deliveries, "time")
        super().__init__(f"delivered {times}, and returned to its queue by its consumer without an ack or an error")


def note_failure(on_failure: Callable[..., Any], request: Any, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
    """Wrap ``Request.on_failure`` of a worker: note the error on the message's channel first."""
    message, error = request._message, getattr(exc_info, "exception", None)
    error = getattr(error, "exc", error)  # billiard wraps it for the way from the pool's process
    if isinstance(message.channel, NotesErrors) and isinstance(error, BaseException):
        message.channel.note_error(message.delivery_tag, _with_traceback(error, exc_info))
    return on_failure(request, exc_info, *args, **kwargs)


def _with_traceback(error: BaseException, exc_info: Any) -> BaseException:
    text = getattr(exc_info, "traceback", None)
    if text and error.__traceback__ is None and error.__cause__ is None:
        error.__cause__ = RemoteTraceback(f"\n{text}")
    return error
