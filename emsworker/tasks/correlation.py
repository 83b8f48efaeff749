"""Correlation of messages: middleware that passes a correlation id from a message to those that its handler sends.

The two headers are named as elsewhere (NServiceBus, Rails Event Store): ``correlation-id`` is the same for everything
that one first message led to, ``causation-id`` is the id of the message whose handler sent this one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from emsworker.core.model import Message
from emsworker.tasks.middleware import Middleware, RunBracket

if TYPE_CHECKING:
    from emsworker.publish.outgoing import Outgoing

CORRELATION, CAUSATION = "correlation-id", "causation-id"

_running: ContextVar[tuple[Message, ...]] = ContextVar("ems_running", default=())


def caused_by(message: Message) -> dict[str, str]:
    """Return the headers of a message that another one caused; batch handlers and threads set them themselves."""
    return {CORRELATION: message.headers.get(CORRELATION, message.id), CAUSATION: message.id}


class Correlation(Middleware):
    """Marks what handlers send; ``Ems(middleware=[Correlation()])``.

    A message that is sent inside a handler gets ``causation-id``, the id of the handler's message, and
    ``correlation-id``: that of the handler's message, or the message's own id if it has none. Headers that the sender
    sets stay. Messages that a batch handler sends are left as they are, because it is not known which message of the
    batch led to them; so are those of a thread that the handler starts itself: use :func:`caused_by` there.
    """

    def before_publish(self, outgoing: Outgoing) -> None:
        """Add the headers."""
        running = _running.get()
        if len(running) == 1:
            outgoing.headers.setdefault(CORRELATION, running[0].headers.get(CORRELATION, running[0].id))
            outgoing.headers.setdefault(CAUSATION, running[0].id)

    @contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        """Remember the message, or all of a batch, while it runs."""
        before = _running.set(tuple(run.messages))
        try:
            yield
        finally:
            _running.reset(before)
