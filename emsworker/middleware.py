"""The seam for extensions: no-op hooks around publishing and running (the shape is Dramatiq's).

Metrics and tracing are middleware themselves. Only hooks that a class overrides are called, so an app without
middleware pays nothing for the seam.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from emsworker.core.model import Message, Outcome, Receipt

if TYPE_CHECKING:
    from emsworker.declaring.task import Outgoing


class Middleware:
    """Override what you need.

    An error in a hook before is an error of the send or of the handler; one in a hook after a run is logged.
    """

    def before_publish(self, outgoing: Outgoing) -> None:
        """A message is about to be sent; its headers may still be changed."""

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """The message is committed."""

    def before_run(self, message: Message, group: str) -> None:
        """A handler is about to run."""

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """A handler has run; ``ran_s`` counts seconds. The outcome is not recorded yet."""

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """After :meth:`after_run`: it has failed and will be run again in so many seconds."""

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """After :meth:`after_run`: it has failed for good.

        Messages whose process died or was replaced are not told here: the beat buries them, and knows no app.
        """

    def on_process_start(self) -> None:
        """A worker process has loaded the app and starts to consume."""

    def on_process_stop(self) -> None:
        """A worker process has finished its work."""


def hooks(middleware: Sequence[Middleware], name: str) -> tuple[Callable[..., Any], ...]:
    """The bound methods of that name that really do something, in order."""
    plain = getattr(Middleware, name)
    return tuple(getattr(item, name) for item in middleware if getattr(type(item), name) is not plain)
