"""Progress of a claim, as its owner has it recorded, and the results of the messages that ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from emsworker.core.model import Claim, Failure
from emsworker.core.run import ProgressReport
from emsworker.core.terminal_text import in_utf8

_ERROR_CHARACTERS = 8000


@dataclass(frozen=True, slots=True)
class ResultRow:
    """Stored outcome of a message.

    Attributes:
        uid: of the message.
        body: the value as JSON, or ``None`` if it failed.
        error_type, error, traceback: of the exception, or ``None`` if it succeeded.
        ttl_s: how many seconds to keep it; 0 if it is not kept, only told.
        follow: the message's ``ems-follow``: the extension that is told of it in the same transaction.
        cancelled: it neither succeeded nor failed.
        body_id: of the chunks in which the body is stored; ``None``: in the row.
    """

    uid: bytes
    body: bytes | None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    ttl_s: float = 0.0
    follow: str | None = None
    cancelled: bool = False
    body_id: bytes | None = None

    @property
    def is_kept(self) -> bool:
        """True if it is to be stored."""
        return self.ttl_s > 0


def storable(text: str) -> str:
    """Return the end of an error's text, with surrogates escaped: half a surrogate pair has no UTF-8 form."""
    return in_utf8(text[-_ERROR_CHARACTERS:])


@dataclass(frozen=True)
class Flush:
    """Progress of a claim, to be recorded by its owner.

    Args:
        acked_to: the last finished offset; of a claim of retries any number that grows with each one that has ended.
        was: the acked offset that was recorded before, as far as the owner knows; ``None`` to write in any case.
        running: the message that is being started, recorded only while the claim is suspect.
        timeout_s: how long the running message may take from now on.
        finished: all of the claim is done.
        done_offsets: of a claim of retries: messages that succeeded since the last flush, with the number of the
            attempt and how many milliseconds it ran.
        failures: messages that failed since the last flush.
        results: of messages that ended since the last flush, if a result is to be stored.
        reports: progress of running messages; reports_ended: uids of messages with reports that have ended.
        blocked: offset and key of messages that were not run, because an earlier message of their key is to run again;
            without a key they are due at once.
    """

    claim: Claim
    topic_id: int
    acked_to: int
    timeout_s: float
    running: int | None = None
    finished: bool = False
    done_offsets: Sequence[tuple[int, int, int]] = ()
    failures: Sequence[Failure] = ()
    results: Sequence[ResultRow] = ()
    reports: Sequence[ProgressReport] = ()
    reports_ended: Sequence[bytes] = ()
    blocked: Sequence[tuple[int, bytes | None]] = ()
    was: int | None = None

    @property
    def is_followed(self) -> bool:
        """True if an extension is told of the end of one of its messages."""
        return any(row.follow is not None for row in self.results)
