"""Administration of topics, groups and dead letters, behind ``ems topics``, ``ems groups`` and ``ems dead``."""

from emsworker.admin.backlogs import Backlogs
from emsworker.admin.dead import DeadClass, DeadEntry, DeadFilter, DeadLetter, DeadLetters, DeadRef, parse_place
from emsworker.admin.lists import Lists
from emsworker.admin.messages import Messages, Page, StoredMessage
from emsworker.admin.paging import Listing
from emsworker.admin.replay import Replay
from emsworker.admin.selection import Selection
from emsworker.admin.stream import Admin
from emsworker.core.partitioner import MAX_PARTITIONS
from emsworker.store.cluster.audit import AuditRow
from emsworker.store.groups.replay import Replayed
from emsworker.store.groups.skipping import Skip, SkipPolicy
from emsworker.store.inspect.trace import MessageHistory

__all__ = [
    "MAX_PARTITIONS",
    "Admin",
    "AuditRow",
    "Backlogs",
    "DeadClass",
    "DeadEntry",
    "DeadFilter",
    "DeadLetter",
    "DeadLetters",
    "DeadRef",
    "Listing",
    "Lists",
    "MessageHistory",
    "Messages",
    "Page",
    "Replay",
    "Replayed",
    "Selection",
    "Skip",
    "SkipPolicy",
    "StoredMessage",
    "parse_place",
]
