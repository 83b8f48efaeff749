"""Guards for effects that are to happen once, although the message that asks for them may be redelivered."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from emsworker.broker.keys import KeyBackend, take_in
from emsworker.broker.port import Broker
from emsworker.core.errors import ConfigError, InvalidName, Problem, Retry
from emsworker.core.ids import decode_key, encode_key
from emsworker.core.model import Begun, OnceState
from emsworker.core.options import choice, raise_problems, refuse_unknown, seconds
from emsworker.core.process.clock import ticks

KEEP_S = 7 * 86400.0
RUNNING_S = 60.0
WAIT_S = 2.0
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.1
_SPAN = seconds()


def once(transaction: Any, key: str | bytes, *, ttl_s: float = KEEP_S) -> bool:
    """Return whether a transactional handler uses this key for the first time; the answer is part of its transaction.

    Args:
        transaction: the handler's.
        key: of the effect, at most 255 bytes.
        ttl_s: seconds for which the key is remembered at least.

    Returns:
        true exactly once among all transactions that are committed.
    """
    raise_problems(_SPAN.problems("ttl_s", ttl_s))
    return take_in(transaction, _key(key), ttl_s)


class Once:
    """A guard around an effect outside of the database: ``with app.once(key) as first: ...``.

    It is true if the effect is to be done now. If the block ends normally, the key is done; if it raises, the key is
    released, so that the next attempt does the effect. An attempt that dies in between leaves the key begun: it cannot
    be known whether the effect has happened, and ``uncertain`` is true for the next attempt after ``running_s``.

    Args:
        backend: the store of keys.
        key: of the effect.
        ttl_s: seconds for which a key that is done is remembered.
        running_s: seconds that the block may take.
        wait_s: seconds to wait for another attempt that runs the block.
        if_uncertain: after an attempt that died: ``repeat`` (at least once) or ``skip`` (at most once).
    """

    def __init__(
        self,
        backend: KeyBackend,
        key: str | bytes,
        *,
        ttl_s: float = KEEP_S,
        running_s: float = RUNNING_S,
        wait_s: float = WAIT_S,
        if_uncertain: str = "repeat",
    ) -> None:
        spans = {"ttl_s": ttl_s, "running_s": running_s, "wait_s": wait_s}
        problems = [problem for name, value in spans.items() for problem in _SPAN.problems(name, value)]
        raise_problems(problems + choice(("repeat", "skip")).problems("if_uncertain", if_uncertain))
        self._backend = backend
        self._key = _key(key)
        self._ttl_s = ttl_s
        self._running_s = running_s
        self._wait_s = wait_s
        self._skip = if_uncertain == "skip"
        self._begun = Begun(OnceState.DONE, b"")

    @classmethod
    def of(cls, broker: Broker, key: str | bytes, backend: str, options: Mapping[str, Any]) -> Once:
        """Return the guard that :meth:`Ems.once` asks for; the arguments and errors are its."""
        refuse_unknown("once()", options, ("ttl_s", "running_s", "wait_s", "if_uncertain"))
        keys = broker.keys(backend)
        if keys is None:
            raise ConfigError([Problem("backend", repr(backend), "must be mysql, or redis with the setting redis_url")])
        return cls(keys, key, **options)

    @property
    def uncertain(self) -> bool:
        """True if an earlier attempt died inside the block: ask the other side, if it can be asked."""
        return self._begun.entry is OnceState.UNCERTAIN

    def __bool__(self) -> bool:
        return self._begun.entry is OnceState.FIRST or (self.uncertain and not self._skip)

    def __enter__(self) -> Once:
        """Begin the effect.

        Raises:
            Retry: another attempt runs and takes long; in a handler, the message is retried when its time is over.
        """
        deadline, pause = ticks() + self._wait_s, _POLL_MIN_S
        self._begun = self._backend.begin(self._key, self._ttl_s, self._running_s)
        while self._begun.entry is OnceState.BUSY and ticks() < deadline:
            time.sleep(min(pause, _POLL_MAX_S))
            pause *= 2
            self._begun = self._backend.begin(self._key, self._ttl_s, self._running_s)
        if self._begun.entry is OnceState.BUSY:
            raise Retry(
                f"once {decode_key(self._key)!r}: another attempt runs", countdown=max(0.05, self._begun.left_s)
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._begun.entry is OnceState.DONE:
            return
        if error is None:
            self._backend.finish(self._key, self._begun.token, self._ttl_s)
        else:
            self._backend.cancel(self._key, self._begun.token)


def _key(key: str | bytes) -> bytes:
    """Return the stored form of a key; an empty one would be shared by all effects whose key was left out.

    Raises:
        InvalidName: the key is not valid.
    """
    raw = encode_key("key of once", key)
    if not raw:
        raise InvalidName(f"key of once {key!r} is empty; name the effect, like the id of its message")
    return raw
