"""Handler of log records that counts warnings and errors that repeat, instead of writing all of them.

Sixteen thousand messages that nobody can read are one fault, and not sixteen thousand lines, between which nobody finds
the other one.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any

from emsworker.core.process import forks
from emsworker.core.process.clock import ticks

PERIOD_S = 60.0
REPEATS = 20
"""Lines of one kind in a period, by default."""

_OURS = "emsworker."
_MOST_KINDS = 100  # names of tasks come from whoever sends: he may not choose how much is written
_OF_KIND = ("topic", "group", "task", "outcome")


@dataclass
class _Kind:
    """Lines of one kind since the begin of their period."""

    until: float
    written: int = 0
    left_out: int = 0
    last: logging.LogRecord = field(default_factory=lambda: logging.makeLogRecord({}))


class RepeatHandler(logging.StreamHandler[Any]):
    """Writes records to a stream; of EMS's own warnings and errors of one kind only some in a minute.

    Of one kind are records of one logger with one level and one template, about one topic, group and task, with one
    outcome and one class of error. The others are counted, and told in one line at the end of the minute, or of the
    process: its field ``repeated`` is their number. Records of other loggers, and those below warnings, are written.

    Args:
        stream: by default standard error.
        most: lines of one kind in a minute; 0 writes all.
    """

    def __init__(self, stream: Any = None, most: int = REPEATS) -> None:
        super().__init__(stream)
        self._most = most
        self._kinds: dict[tuple[Any, ...], _Kind] = {}
        self._mutex = forks.Lock()
        self._timer: threading.Timer | None = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Write a record, or count it."""
        self._tell(ticks())
        counts = self._most and record.levelno >= logging.WARNING and record.name.startswith(_OURS)
        if counts and not self._admits(record):
            return False
        return bool(super().handle(record))

    def _admits(self, record: logging.LogRecord) -> bool:
        with self._mutex:
            key = _kind_of(record)
            if key not in self._kinds and len(self._kinds) >= _MOST_KINDS:
                key = key[:3]
            kind = self._kinds.setdefault(key, _Kind(ticks() + PERIOD_S))
            if kind.written < self._most:
                kind.written += 1
                return True
            kind.left_out, kind.last = kind.left_out + 1, record
            if self._timer is None or not self._timer.is_alive():  # that of a parent process does not live here
                self._tell_at(kind.until)
            return False

    def _tell_at(self, then: float) -> None:
        self._timer = threading.Timer(max(0.0, then - ticks()) + 0.1, self._tell_later)
        self._timer.daemon, self._timer.name = True, "ems-log-repeats"
        self._timer.start()

    def _tell_later(self) -> None:
        self._tell(ticks())
        with self._mutex:
            self._timer = None
            if left := [kind.until for kind in self._kinds.values() if kind.left_out]:
                self._tell_at(min(left))

    def _tell(self, now: float) -> None:
        """Write what was counted in the periods that are over."""
        if not self._kinds:
            return
        with self._mutex:
            over = {key: kind for key, kind in self._kinds.items() if kind.until <= now}
            for key in over:
                del self._kinds[key]
        for kind in over.values():
            if kind.left_out:
                super().handle(_summary(kind))

    def close(self) -> None:
        """Write what was counted, and close."""
        self._tell(float("inf"))
        super().close()


def _kind_of(record: logging.LogRecord) -> tuple[Any, ...]:
    values = vars(record)
    if record.exc_info and record.exc_info[0] is not None:
        error = record.exc_info[0].__name__
    else:
        given = record.args if isinstance(record.args, tuple) else ()
        first = next((one for one in given if isinstance(one, BaseException)), None)
        error = type(first).__name__ if first is not None else str(values.get("error", "")).partition(":")[0]
    return record.name, record.msg, record.levelno, error, *(str(values.get(name, "")) for name in _OF_KIND)


def _summary(kind: _Kind) -> logging.LogRecord:
    last = kind.last
    text = "%d more like this within %.0f s; the last: %s"
    line = next(iter(last.getMessage().splitlines()), "")
    made = logging.LogRecord(
        last.name, last.levelno, last.pathname, last.lineno, text, (kind.left_out, PERIOD_S, line), None
    )
    made.__dict__.update({name: getattr(last, name) for name in _OF_KIND if hasattr(last, name)})
    made.__dict__["repeated"] = kind.left_out
    return made
