"""Which message led to which: middleware that hands a correlation id on from a message to those that its handler sends.

The two headers are named as elsewhere (NServiceBus, Rails Event Store): ``correlation-id`` is the same for everything
that one first message led to, ``causation-id`` is the id of the message whose handler sent this one.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from emsworker.core.model import Message, Outcome
from emsworker.middleware import Middleware

if TYPE_CHECKING:
    from emsworker.declaring.task import Outgoing

CORRELATION, CAUSATION = "correlation-id", "causation-id"

_running: ContextVar[tuple[Message, ...]] = ContextVar("ems_running", default=())


def caused_by(message: Message) -> dict[str, str]:
    """The headers of what is sent because of a message, for batch handlers and threads, which know best."""
    return {CORRELATION: message.headers.get(CORRELATION, message.id), CAUSATION: message.id}


class Correlation(Middleware):
    """Marks what handlers send; ``Ems(middleware=[Correlation()])``.

    A message that is sent inside a handler gets ``causation-id``, the id of the handler's message, and
    ``correlation-id``: that of the handler's message, or the message's own id if it has none. Headers that the sender
    gives himself stay. What a batch handler sends is left as it is, because it is not known which message of the batch
    led to it; so is what is sent by a thread that the handler starts itself: there give :func:`caused_by`.
    """

    def before_publish(self, outgoing: Outgoing) -> None:
        """Add the headers."""
        running = _running.get()
        if len(running) == 1:
            outgoing.headers.setdefault(CORRELATION, running[0].headers.get(CORRELATION, running[0].id))
            outgoing.headers.setdefault(CAUSATION, running[0].id)

    def before_run(self, message: Message, group: str) -> None:
        """Remember the message; of a batch all, until one of them is run again by itself."""
        before = _running.get()
        again = any(one.id == message.id for one in before)
        _running.set((message,) if again else (*before, message))

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Forget it."""
        _running.set(())
