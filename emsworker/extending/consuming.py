"""The way out: the consumer, and what it claims and polls with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.consume.attempts import describe as describe
    from emsworker.consume.claiming import ReadGroup as ReadGroup
    from emsworker.consume.in_hand import PulledRun as PulledRun
    from emsworker.consume.listener import Listener as Listener
    from emsworker.consume.poller import Poller as Poller
    from emsworker.consume.pull import PullConsumer as PullConsumer
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.consume.attempts": "describe",
            "emsworker.consume.claiming": "ReadGroup",
            "emsworker.consume.in_hand": "PulledRun",
            "emsworker.consume.listener": "Listener",
            "emsworker.consume.poller": "Poller",
            "emsworker.consume.pull": "PullConsumer",
        },
    )
