"""The way in: producers, messages to send, notifications over Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.publish.notifier import Notifier as Notifier
    from emsworker.publish.outgoing import Outgoing as Outgoing
    from emsworker.publish.producer import Producer as Producer
    from emsworker.publish.redis_connection import LeftAlone as LeftAlone
    from emsworker.publish.redis_connection import RedisConnection as RedisConnection
    from emsworker.publish.redis_connection import client_of as client_of
    from emsworker.publish.transaction import OutboxTransaction as OutboxTransaction
    from emsworker.publish.transaction import Transaction as Transaction
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.publish.notifier": "Notifier",
            "emsworker.publish.outgoing": "Outgoing",
            "emsworker.publish.producer": "Producer",
            "emsworker.publish.redis_connection": "LeftAlone RedisConnection client_of",
            "emsworker.publish.transaction": "OutboxTransaction Transaction",
        },
    )
