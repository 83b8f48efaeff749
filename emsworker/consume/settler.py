"""The thread that writes down what became of the messages that a consumer had in hand."""

from __future__ import annotations

import logging
from collections.abc import Callable

from emsworker.broker.channel import Channel
from emsworker.consume.claim_progress import ClaimWrite, Ended
from emsworker.consume.claim_writer import send
from emsworker.consume.claiming import Claiming
from emsworker.consume.in_hand import InHand
from emsworker.consume.pulled import PulledClaim, PulledRun
from emsworker.core.errors import FenceLost, TimeLimitExceeded
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.process.runnable import Runnable, Trouble
from emsworker.store.engine.errors import TROUBLES

log = logging.getLogger(__name__)

# After that long without a claim nothing is about to carry the ends of what is settled, and the next claim is faster
# without them.
_QUIET_S = 0.003


class Settler(Runnable):
    """Writes down what was settled, and ends what has timed out.

    It checks twice per ``interval_s``, and when all is settled.

    Args:
        channel: for this thread.
        interval_s: seconds that ends may wait for a write.
        in_hand: the claims.
        claiming: knows the lease, and is told of partitions that are free again.
        time_out: returns the end of a message that has timed out.
        on_death: see :class:`Runnable`.
    """

    def __init__(
        self,
        channel: Channel,
        interval_s: float,
        in_hand: InHand,
        claiming: Claiming,
        time_out: Callable[[PulledRun, TimeLimitExceeded], Ended],
        on_death: Callable[[str, BaseException], None],
    ) -> None:
        super().__init__("ems-settler", on_death)
        self._channel = channel
        self._interval_s = interval_s
        self._in_hand = in_hand
        self._claiming = claiming
        self._time_out = time_out
        self._mutex = forks.Lock()  # around every use of the channel
        self._trouble = Trouble(log)

    def step(self) -> None:
        """Check every claim once."""
        until = ticks() + self._interval_s / 2
        at_once = self._in_hand.wait_until_settled(self._interval_s / 2, _QUIET_S)
        self._in_hand.time_out(self._time_out)
        with self._mutex:
            for pulled in self._in_hand.claims():
                self._write(pulled, at_once=at_once)
        self._claiming.leave_slot(self._in_hand)
        if not at_once or self._in_hand.claims():
            self.sleep(until - ticks())

    def stop(self) -> None:
        """Ask the thread to end."""
        super().stop()
        self._in_hand.end_wait()

    def flush(self, timeout_s: float) -> bool:
        """Write everything down; return false if that was not possible in time."""
        until = ticks() + timeout_s
        while not self.write_all():
            if ticks() > until:
                return False
            self._in_hand.wait(self._interval_s / 2)
        return True

    def write_all(self) -> bool:
        """Write everything down that was settled; return false if the server cannot be reached."""
        self._in_hand.end_sending()
        with self._mutex:
            return all([self._write(pulled, at_once=True) for pulled in self._in_hand.claims()])

    def announce(self, pulled: PulledClaim) -> bool:
        """Write down that a suspect message is alone, or no longer is; return false if that is not possible now."""
        with self._mutex, pulled.sending:
            with self._in_hand.lock:
                write = pulled.announce()
            return write is not None and self._send(pulled, write)

    def _write(self, pulled: PulledClaim, *, at_once: bool) -> bool:
        """Send what is due of a claim; return false if something is left because the server cannot be reached."""
        try:
            if not pulled.sending.acquire(blocking=at_once):
                return True  # a fetch is writing it down
            while True:
                with self._in_hand.lock:
                    write = pulled.plan(self._interval_s, at_once=at_once)
                if write is None:
                    return True
                if not self._send(pulled, write):
                    return False
        finally:
            pulled.end_sending()

    def _send(self, pulled: PulledClaim, write: ClaimWrite) -> bool:
        try:
            send(self._channel, write, holds=self._claiming.holds(pulled))
            self._in_hand.confirm([(pulled, write)])
        except FenceLost as error:
            self._in_hand.lose(pulled, error)
        except TROUBLES as error:
            self._trouble.note("cannot write down what was settled", error)
            return False
        except BaseException:  # from outside, in a thread that flushes
            write.in_doubt = True
            raise
        else:
            self._trouble.over("what was settled is written down")
            self._claiming.note_written(pulled)
        return True

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()
