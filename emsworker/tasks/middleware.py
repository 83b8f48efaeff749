"""The extension interface: no-op hooks around publishing and running (modelled on Dramatiq).

Metrics and tracing are middleware themselves. Only hooks that a class overrides are called, so an app without
middleware pays nothing for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from emsworker.core.model import Message, Outcome, Receipt

if TYPE_CHECKING:
    from emsworker.publish.outgoing import Outgoing


class Middleware:
    """Base class of middleware: override the hooks that you need.

    An error in a hook before is an error of the send or of the handler; one in a hook after a run is logged.
    """

    def before_publish(self, outgoing: Outgoing) -> None:
        """Called before a message is sent; its headers may still be changed."""

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Called after the message is committed."""

    def before_run(self, message: Message, group: str) -> None:
        """Called before a handler runs."""

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Called after a handler has run, for ``ran_s`` seconds. The outcome is not recorded yet."""

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """Called after :meth:`after_run` if the run failed and will be retried in ``delay_s`` seconds."""

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Called after :meth:`after_run` if the message has failed for good.

        If its process died or was replaced over a time limit, another process of the group calls it, a few seconds
        later and without :meth:`after_run`; at most once, and not at all if no process of the group has such a hook.
        """

    def on_process_start(self) -> None:
        """Called when a worker process has loaded the app and starts to consume."""

    def on_process_stop(self) -> None:
        """Called when a worker process has finished its work."""


def hooks(middleware: Sequence[Middleware], name: str) -> tuple[Callable[..., Any], ...]:
    """Return the bound methods of that name that are overridden, in order."""
    plain = getattr(Middleware, name)
    return tuple(getattr(item, name) for item in middleware if getattr(type(item), name) is not plain)
