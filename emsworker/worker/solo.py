"""A worker in one process: ``ems worker --solo`` runs handlers in the main thread, which has the terminal.

It is made for debuggers. A message may be looked at for as long as it takes, because three things keep its claim:

- Handlers have no time limits, and a claim's deadline is a year away.
- The lease is renewed by a thread, which goes on while the main thread waits at a prompt.
- A debugger that stops all threads stops that one, too. Then the renewer renews the lease, a process of its own that
  ends with this one (:mod:`emsworker.worker.renewer`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import termios
import threading
from collections.abc import Callable
from dataclasses import replace
from select import select
from typing import Any, NoReturn

from emsworker.app import Ems
from emsworker.beat.leader import Beats
from emsworker.consume.coroutines import CallersLoop
from emsworker.core.process.clock import ticks
from emsworker.core.process.signals import leave_at_once
from emsworker.worker.child import Child
from emsworker.worker.child_spec import FAILED, ChildSpec
from emsworker.worker.consumer import Assignment, Consumer, ProcessContext
from emsworker.worker.renewer import RenewerProcess

log = logging.getLogger(__name__)

NO_LIMIT_S = 365 * 86400.0
_LOOK_S = 0.2
_LAST_S = 5.0
_ENDS_AT_ONCE = (signal.SIGINT, signal.SIGHUP)


class Solo(Child):
    """The only process of a worker; handlers run in its main thread.

    Args:
        spec: for one thread, without a supervisor.
        beats: run here too, if there are any.
        on_ready: called when it takes messages.

    Attributes:
        restarts: it ends to be started anew.
    """

    def __init__(self, spec: ChildSpec, beats: Beats | None, on_ready: Callable[[], None]) -> None:
        super().__init__(spec)
        self._beats, self._on_ready = beats, on_ready
        self._renewer: RenewerProcess | None = None
        self._terminal = _terminal_mode()
        self._ended = False
        self.restarts = False

    def request_restart(self) -> None:
        """End after the running message, to be started anew; safe from any thread."""
        self.restarts = True
        self._note_signal(signal.SIGTERM, None)

    def request_stop(self) -> None:
        """End with an error, after the running message; safe from any thread."""
        self._exit_code = FAILED
        self._note_signal(signal.SIGTERM, None)

    def _catch_signals(self) -> None:
        super()._catch_signals()
        for number in _ENDS_AT_ONCE:
            signal.signal(number, self._note_signal)

    def _assignments(self, app: Ems) -> list[Assignment]:
        assignments = super()._assignments(app)
        for handler in (handler for one in assignments for handler in one.route.handlers):
            handler.options = replace(
                handler.options, concurrency=1, timeout_s=None, soft_time_limit_s=None, hard_time_limit_s=None
            )
        return [replace(one, group=replace(one.group, timeout_s=NO_LIMIT_S)) for one in assignments]

    def _make_context(self, app: Ems, assignments: dict[int, Assignment]) -> ProcessContext:
        return replace(super()._make_context(app, assignments), loop=CallersLoop(), one_thread=True)

    def _make_consumers(self, context: ProcessContext, threads: int) -> list[Consumer]:
        return [_MainConsumer(0, context, self._on_death, self._catch_interrupts)]

    def _catch_interrupts(self) -> None:
        """Take SIGINT back from pdb, which keeps it after ``continue``."""
        signal.signal(signal.SIGINT, self._note_signal)

    def _start(self, connect_timeout_s: float) -> None:
        """Start all threads but the consumer, which is the main one."""
        for thread in [*([self._listener] if self._listener else []), *self._sides, *self._readers]:
            thread.start()
        if self._beats is not None:
            self._beats.start()
        self._renewer = RenewerProcess.start(self._spec, self._context.settings, self._context.broker.url)
        self._on_ready()

    def _wait(self) -> None:
        """Run messages until told to stop."""
        threading.Thread(target=self._follow_signals, name="ems-signals", daemon=True).start()
        self._consumers[0].run()
        self._ended = True
        leave_at_once()
        for reader in self._readers:
            reader.join(_LAST_S)
        self._end_sides()
        self._release()
        log.info("stopped: %s", self._work)

    def _follow_signals(self) -> None:
        """Act upon signals, in a thread of its own: the main one may wait at a prompt."""
        while not self._ended:
            if select([self._signals], [], [], _LOOK_S)[0]:
                self._on_signal(os.read(self._signals, 16))
            if self._stop_by is not None and ticks() > self._stop_by:
                self._stop_at_once(f"a message still ran {self._stop_timeout_s:g} s after the stop")

    def _on_signal(self, numbers: bytes) -> None:
        for number in numbers:
            if number in _ENDS_AT_ONCE and (self._stop_by is not None or self._context.claims.claims()):
                self._stop_at_once("told to stop")
            else:
                super()._on_signal(bytes([number]))

    def _release(self) -> None:
        """End what does not end with the threads of this process."""
        if self._renewer is not None:
            self._renewer.stop()
        if self._beats is not None:
            self._beats.stop()

    def _end_now(self) -> NoReturn:
        self._release()
        if self._terminal is not None:  # the main thread may read a line, in a mode without echo
            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._terminal)
        super()._end_now()


class _MainConsumer(Consumer):
    """A consumer whose loop is run by the main thread.

    Args:
        number, context, on_death: see :class:`Consumer`.
        before: called before each step.
    """

    def __init__(
        self,
        number: int,
        context: ProcessContext,
        on_death: Callable[[str, BaseException], None],
        before: Callable[[], None],
    ) -> None:
        super().__init__(number, context, on_death)
        self._before_step = before

    def step(self) -> None:
        self._before_step()
        super().step()


def _terminal_mode() -> list[Any] | None:
    """Return the mode of the terminal that this process reads from; ``None`` if it reads from none."""
    try:
        return termios.tcgetattr(sys.stdin.fileno())
    except (OSError, ValueError, termios.error):
        return None
