"""Allocators of offsets: the end of the partition in MySQL, a counter in Redis, or a class of the user's."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, Self

from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, Problem, text_of
from emsworker.core.process.forks import fork_blocked
from emsworker.store.engine.session import Session
from emsworker.store.stream.messages import Placement

_OURS = {
    "mysql": "emsworker.publish.allocators.mysql:MysqlAllocator",
    "redis": "emsworker.publish.allocators.redis:RedisAllocator",
}


class Allocator(Protocol):
    """Hands out places for messages; the primary key of the message table has the last word.

    It may be wrong: an offset that is taken, or lies below the log start offset, makes the publishing transaction fail,
    and :meth:`reseed` is called before the next attempt. An offset that is handed out and never used leaves a hole,
    which readers close with a tombstone after ``gap_timeout_s``.
    """

    @classmethod
    def open(cls, settings: Settings, stream_id: str) -> Self:
        """Make the allocator of a process.

        Args:
            stream_id: the identity of the stream, to keep two databases apart.
        """
        ...

    def place(self, session: Session, topic_id: int, partition: int, count: int) -> Placement:
        """Return the place of the next ``count`` messages; without a base the server finds the end of the partition."""
        ...

    def reseed(self, session: Session, topic_id: int, partition: int) -> None:
        """Ask MySQL where the partition ends, after an offset was taken or below the log start offset."""
        ...

    def landed(self, topic_id: int, partition: int, base: int, count: int) -> None:
        """Note that ``count`` messages from ``base`` on have been committed."""
        ...


def open_allocator(settings: Settings, stream_id: str) -> Allocator:
    """Make the allocator that the settings name.

    Raises:
        ConfigError: it cannot be imported.
    """
    module, _, name = _OURS.get(settings.allocator, settings.allocator).partition(":")
    try:
        with fork_blocked:
            kind: type[Allocator] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        fix = f"cannot be imported: {text_of(error)}"
        raise ConfigError([Problem("allocator", repr(settings.allocator), fix)]) from error
    return kind.open(settings, stream_id)
