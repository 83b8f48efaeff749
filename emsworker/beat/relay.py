"""The beat service that moves messages that are due from the outbox into the stream."""

from __future__ import annotations

from emsworker.core.config import Settings
from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval
from emsworker.store.engine.session import Session
from emsworker.store.stream import outbox

_BATCH = 500
_LONGEST_LOOK_S = 1.0


class Relay:
    """Moves messages that are due into the stream; its pause ends when the next one is due.

    Commits of other processes cannot be predicted, so it polls at an adaptive interval: often while there is traffic,
    backing off while there is none. Any number of relays may run at once, because each row is moved by the one that
    locks it.

    Args:
        shortest_s: the pause between two polls while there is traffic.
        late_s: move only messages that have been due for this long; then the pause need not end exactly on time.
    """

    def __init__(self, shortest_s: float = 0.025, late_s: float = 0.0) -> None:
        self._shortest_s, self._late_s = shortest_s, late_s
        self._interval = PollInterval(shortest_s, _LONGEST_LOOK_S)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Move one batch and return the pause."""
        done = outbox.relay_due(session, _BATCH, self._late_s)
        if done.topic_ids:
            self._interval.note()
        next_s = max(done.next_s, self._shortest_s) if self._late_s and done.next_s > 0 else done.next_s
        return min(next_s, self._interval.pause_s(ticks()), settings.poll_max_s)
