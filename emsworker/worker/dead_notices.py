"""Thread that tells a process's middleware of dead letters whose own process could not.

A message whose worker died in its last attempt is made a dead letter by the beat, which runs without an app; one whose
handler hangs is given up while it runs. The hooks are called here, in any process that handles the message's group.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from emsworker.broker.channel import Channel
from emsworker.core.codec import Decoder
from emsworker.core.errors import TimeLimitExceeded, WorkerLost
from emsworker.core.model import Message, Notice
from emsworker.core.process.runnable import OnDeath, Runnable
from emsworker.tasks.middleware import Hooks

log = logging.getLogger(__name__)

_MOST = 100


class DeadNotices(Runnable):
    """Calls ``on_dead`` for dead letters of processes that died or were replaced.

    Args:
        channel: of the thread alone.
        places: the topic and the name of each group that the process handles, by the group's id.
        hooks: what to call.
        decoder: decodes the bodies.
        pause_s: seconds between two looks.
        on_death: see :class:`Runnable`.
    """

    action = "look for dead letters of processes that died"

    def __init__(
        self,
        channel: Channel,
        places: Mapping[int, tuple[str, str]],
        hooks: Hooks,
        decoder: Decoder,
        pause_s: float,
        on_death: OnDeath,
    ) -> None:
        super().__init__("ems-notices", on_death)
        self._channel = channel
        self._places, self._hooks, self._decoder, self.away_s = places, hooks, decoder, pause_s

    def step(self) -> None:
        """Take the notices of the process's groups, and call the hooks for each."""
        notices = self._channel.take_notices(list(self._places), _MOST)
        for notice in notices:
            self._tell(notice)
        if len(notices) < _MOST:
            self.sleep(self.away_s)

    def _tell(self, notice: Notice) -> None:
        topic, group = self._places[notice.group_id]
        message = Message(topic, notice.partition, notice.message, self._decoder, notice.attempts)
        kind = WorkerLost if notice.error_type == WorkerLost.__name__ else TimeLimitExceeded
        for hook in self._hooks:
            try:
                hook(message, group, kind(notice.error), notice.reason)
            except BaseException:  # SystemExit would end the process of other messages
                log.exception("a hook failed for %r, whose process died", message)

    def shut_down(self) -> None:
        self._channel.close()
