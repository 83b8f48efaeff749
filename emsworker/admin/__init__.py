"""Administration: topics, groups and dead letters. What ``ems topics``, ``ems groups`` and ``ems dead`` do."""

from emsworker.admin.dead import DeadLetter, DeadLetters, DeadRef, parse_place
from emsworker.admin.messages import Messages, Page, StoredMessage
from emsworker.admin.replay import Replay
from emsworker.admin.selecting import Selection
from emsworker.admin.stream import MAX_PARTITIONS, Admin

__all__ = [
    "MAX_PARTITIONS",
    "Admin",
    "DeadLetter",
    "DeadLetters",
    "DeadRef",
    "Messages",
    "Page",
    "Replay",
    "Selection",
    "StoredMessage",
    "parse_place",
]
