"""Administration: topics, groups and dead letters. What ``ems topics``, ``ems groups`` and ``ems dead`` do."""

from emsworker.admin.dead import DeadLetter, DeadLetters, DeadRef, parse_place
from emsworker.admin.stream import Admin
from emsworker.core.partitioner import MAX_PARTITIONS

__all__ = ["MAX_PARTITIONS", "Admin", "DeadLetter", "DeadLetters", "DeadRef", "parse_place"]
