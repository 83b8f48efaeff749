"""Names of the topics in which queues and exchanges are kept."""

from __future__ import annotations

import hashlib
import re

GROUP = "celery"
"""The group of every queue's topic."""

HEARTBEAT = "worker.heartbeat"
"""The routing key of the event that each worker sends every two seconds; nobody waits for the next one."""

_ODD = re.compile(r"[^A-Za-z0-9._-]")
_MOST = 150


def queue_topic(queue: str) -> str:
    """Return the topic of a queue: ``amqp:celery``; characters that no topic's name has are written as ``:40``."""
    return f"amqp:{_escaped(queue)}"


def bus_topic(exchange: str) -> str:
    """Return the broadcast topic of an exchange; that of the default exchange is ``amqp-bus``."""
    return f"amqp-bus:{_escaped(exchange)}" if exchange else "amqp-bus"


def _escaped(name: str) -> str:
    text = _ODD.sub(lambda found: "".join(f":{byte:02x}" for byte in found[0].encode()), name)
    if len(text) <= _MOST:
        return text
    return f"{text[:_MOST]}:{hashlib.sha256(name.encode()).hexdigest()[:32]}"
