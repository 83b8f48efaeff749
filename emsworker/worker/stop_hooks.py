"""The end of a process's middleware: every ``on_process_stop`` is called, and none can hold up the stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from emsworker.core.process.clock import ticks
from emsworker.tasks.middleware import Middleware, hooks

log = logging.getLogger(__name__)


class StopHooks:
    """The ``on_process_stop`` hooks of a process that ends with ``os._exit``, which runs nothing else.

    Args:
        middleware: of the app.
        timeout_s: seconds that all of them have together.
    """

    def __init__(self, middleware: Sequence[Middleware], timeout_s: float) -> None:
        self._hooks = hooks(middleware, "on_process_stop")
        self._timeout_s = timeout_s

    def call(self) -> None:
        """Call each hook in a thread of its own, so that one that hangs costs the others nothing, and wait for them."""
        until = ticks() + self._timeout_s
        threads = [threading.Thread(target=_call, args=(hook,), daemon=True) for hook in self._hooks]
        for thread in threads:
            thread.start()
        for hook, thread in zip(self._hooks, threads, strict=True):
            thread.join(max(0.0, until - ticks()))
            if thread.is_alive():
                log.warning(
                    "%s has not returned after %g s (stop_hooks_timeout_s); the process ends without it",
                    hook.__qualname__,
                    self._timeout_s,
                )


def _call(hook: Callable[[], object]) -> None:
    try:
        hook()
    except BaseException:  # the process ends in any case
        log.exception("%s failed", hook.__qualname__)
