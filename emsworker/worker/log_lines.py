"""Log lines of attempts, if ``keep_log_lines`` is set: kept in memory while a handler runs, and written each second.

They are written while the handler still runs, too: its page shows them, and a worker that is killed loses what was
logged in the last second. Nothing is kept of a batch of several messages, nor of what EMS itself logs.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping

from emsworker.broker.mysql import MysqlBroker
from emsworker.consume.attempts import running_fields
from emsworker.core.log_lines import AttemptLog, LineBuffer
from emsworker.core.model import Message, Outcome
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.core.terminal_text import escape_control, shortened
from emsworker.core.url import redact
from emsworker.tasks.middleware import Middleware

_FORMAT, _TIME = "%(asctime)s.%(msecs)03d %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S"
_OURS = "emsworker"
_MOST_ATTEMPTS = 4096  # that are kept at once: the oldest give way
_LINE_CHARACTERS = 2000
_WRITE_S, _SWEEP_S, _SWEPT = 1.0, 60.0, 1000

_Key = tuple[str, str, int, int, int]  # topic, group, partition, offset, attempt


class LineCollector(Middleware):
    """Keeps the last lines of what runs in this process.

    Args:
        most: lines of an attempt.
        group_ids: ids of the groups, by topic and name.
    """

    def __init__(self, most: int, group_ids: Mapping[tuple[str, str], int]) -> None:
        self._most, self._group_ids = most, group_ids
        self._lock = forks.Lock()
        self._buffers: OrderedDict[_Key, LineBuffer] = OrderedDict()

    def add(self, line: str) -> None:
        """Add a line to the attempt that the calling thread, or coroutine, runs; elsewhere it is not kept."""
        fields = running_fields()
        if "id" not in fields:
            return
        key = (fields["topic"], fields["group"], fields["partition"], fields["offset"], fields["attempt"])
        with self._lock:
            buffer = self._buffers.get(key)
            if buffer is None:
                buffer = self._buffers[key] = LineBuffer(self._most)
                if len(self._buffers) > _MOST_ATTEMPTS:
                    self._buffers.popitem(last=False)
            buffer.add(line)

    def before_run(self, message: Message, group: str) -> None:
        """Begin anew if this attempt ran before, and was given back."""
        with self._lock:
            self._buffers.pop(_key_of(message, group), None)

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Note that nothing more comes."""
        with self._lock:
            if (buffer := self._buffers.get(_key_of(message, group))) is not None:
                buffer.ended = True

    def take(self) -> dict[tuple[int, int, int, int], AttemptLog]:
        """Return the logs that have changed since the last call, by group id, partition, offset and attempt."""
        found = {}
        with self._lock:
            for key, buffer in list(self._buffers.items()):
                topic, group, partition, offset, attempt = key
                if buffer.changed and (group_id := self._group_ids.get((topic, group))) is not None:
                    found[group_id, partition, offset, attempt] = buffer.log(attempt)
                if buffer.ended:
                    del self._buffers[key]
        return found


def _key_of(message: Message, group: str) -> _Key:
    return message.topic, group, message.partition, message.offset, message.attempt


class LineHandler(logging.Handler):
    """Gives each record of a handler to the collector, without passwords in URLs and control characters."""

    def __init__(self, collector: LineCollector) -> None:
        super().__init__()
        self._collector = collector
        formatter = logging.Formatter(_FORMAT, _TIME)
        formatter.converter = time.gmtime
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record."""
        if record.name == _OURS or record.name.startswith(f"{_OURS}."):
            return
        try:
            line = escape_control(redact(shortened(self.format(record), _LINE_CHARACTERS)))
            self._collector.add(line.replace("\n", "\n  "))
        except Exception:  # what a handler logs may have methods of its author's
            self.handleError(record)


class LineWriter(Runnable):
    """Writes the logs of a process, and deletes old ones.

    Args:
        broker: keeps them.
        collector: has them.
        keep_s: seconds for which they are kept.
        on_death: see :class:`Runnable`.
    """

    action = "write log lines of attempts"

    def __init__(self, broker: MysqlBroker, collector: LineCollector, keep_s: float, on_death: OnDeath) -> None:
        super().__init__("ems-log-lines", on_death)
        self._broker, self._collector, self._keep_s = broker, collector, keep_s
        self._sweep_at = 0.0
        self._left: dict[tuple[int, int, int, int], AttemptLog] = {}  # could not be written

    def step(self) -> None:
        """Wait, write what was logged meanwhile, and now and then delete what is old."""
        self.sleep(_WRITE_S)
        self._write()
        if ticks() >= self._sweep_at:
            full = self._broker.delete_old_log_lines(self._keep_s, _SWEPT) == _SWEPT
            self._sweep_at = ticks() + (0.0 if full else _SWEEP_S)

    def _write(self) -> None:
        self._left |= self._collector.take()
        while len(self._left) > _MOST_ATTEMPTS:
            del self._left[next(iter(self._left))]
        if self._left:
            self._broker.write_log_lines(self._left)
            self._left = {}

    def shut_down(self) -> None:
        """Write what was logged last."""
        self._write()
        self._broker.database.thread_session().close()
