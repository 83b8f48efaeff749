"""Publishing without waiting for the commit: a thread sends what is queued, many messages in one transaction."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections import deque
from collections.abc import Sequence

from emsworker.extending.errors import REFUSED, EmsError, PublishTimeout, StoreUnavailable, TopicDeleted
from emsworker.extending.processes import Runnable, Trouble, forks, ticks
from emsworker.extending.publishing import Producer
from emsworker.extending.values import NewMessage, Topic, counted

log = logging.getLogger(__name__)

_MOST, _BATCH, _BYTES = 10_000, 500, 4 << 20
_PAUSE_S, _LAST_S = 0.5, 30.0
_GATHER_S = 0.005  # for more messages, while there are many: each batch takes time from who calls tasks

_PASSING = (StoreUnavailable, PublishTimeout, *REFUSED)

Places = Sequence[tuple[Topic, NewMessage]]


class Background(Runnable):
    """The thread that sends; its queue is bounded, so that a caller waits if it is too fast.

    What is queued when the process is killed is lost. It is sent when the process ends by itself.

    Args:
        producer: of this process.
    """

    def __init__(self, producer: Producer) -> None:
        super().__init__("ems-celery-publish", lambda name, error: None)
        self._producer = producer
        self._queue: deque[Places] = deque()
        self._changed = forks.Condition()
        self._sending = self._is_busy = False
        self._flushing = 0
        self._trouble = Trouble(log)
        atexit.register(_flush_last, weakref.ref(self))

    def put(self, places: Places) -> None:
        """Queue the copies of a message."""
        with self._changed:
            while len(self._queue) >= _MOST and self.is_alive():
                self._changed.wait(_PAUSE_S)
            self._queue.append(places)
            if len(self._queue) in (1, _BATCH):
                self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until the queue is empty; return false if that was not so in time."""
        until = ticks() + timeout_s
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            while (self._queue or self._sending) and self.is_alive() and ticks() < until:
                self._changed.wait(_PAUSE_S)
            self._flushing -= 1
            return not self._queue and not self._sending

    def step(self) -> None:
        """Send what is queued."""
        with self._changed:
            if not self._queue:
                self._changed.wait(_PAUSE_S)
            if self._is_busy:
                self._changed.wait_for(lambda: len(self._queue) >= _BATCH or self._flushing, _GATHER_S)
            batch: list[Places] = []
            size = 0
            while self._queue and len(batch) < _BATCH and size < _BYTES:
                places = self._queue.popleft()
                batch.append(places)
                size += sum(len(message.body) for _, message in places)
            self._sending, self._is_busy = bool(batch), len(batch) > 1
        if batch:
            self._send(batch)
            with self._changed:
                self._sending = False
                self._changed.notify_all()

    def _send(self, batch: Sequence[Places]) -> None:
        """Send messages together, and each alone if one of them keeps the others from being sent."""
        try:
            self._insist([one for places in batch for one in places])
        except Exception as error:  # whatever it is: with this thread all that is queued would be lost
            if len(batch) > 1:
                for places in batch:
                    self._send([places])
                return
            names = sorted({topic.name for topic, _ in batch[0]})
            unexpected = not isinstance(error, EmsError)
            log.error("a message to %s is dropped, it cannot be sent: %s", names, error, exc_info=unexpected)

    def _insist(self, places: Places) -> None:
        """Send until it is known that all were: an id is written once."""
        while True:
            try:
                self._producer.send_together(places)
                self._trouble.over("messages are sent")
                return
            except _PASSING as error:
                self._trouble.note(f"{counted(len(places), 'message')} not sent yet, and waiting for the stream", error)
                self.sleep(_PAUSE_S)
            except TopicDeleted as error:  # the others are sent
                log.warning("messages to a queue that was deleted are dropped: %s", error)
                return


def _flush_last(background: weakref.ref[Background]) -> None:
    if (one := background()) is not None:
        one.flush(_LAST_S)
