"""Makes stored results of the values and errors of handlers whose results are kept."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from emsworker.consume.claim_progress import Ended
from emsworker.core.codec import encode_json
from emsworker.core.errors import EncodeError, RunCancelled, text_of
from emsworker.core.flush import ResultRow, storable
from emsworker.core.ids import uid_text
from emsworker.core.model import FOLLOW_HEADER, Failure, Message
from emsworker.core.url import redact
from emsworker.tasks.handler import Handler
from emsworker.tasks.options import HandlerOptions

log = logging.getLogger(__name__)

MAX_RESULT_BYTES = 1 << 20


class Putter(Protocol):
    """A result store outside of the stream's transactions."""

    def put(self, row: ResultRow) -> None:
        """Store one result."""
        ...


class ResultWriter:
    """Makes the results of one group's messages.

    Args:
        ttl_s: seconds that they are kept, unless the handler has its own setting.
        putter: stores them instead of MySQL. A plain task's result is stored before its message is acked, so a crash
            in between repeats both; a transactional one's only after the commit, so a crash in between may lose it.
    """

    def __init__(self, ttl_s: float, putter: Putter | None = None) -> None:
        self._ttl_s = ttl_s
        self._putter = putter

    def of_value(self, message: Message, handler: Handler, value: object) -> list[ResultRow]:
        """Return the result of a message that has succeeded, if it is kept or followed."""
        ttl_s, follow = self._kept_s(handler.options), message.headers.get(FOLLOW_HEADER)
        try:
            body = encode_json(handler.dump_result(value))
            if len(body) > MAX_RESULT_BYTES:
                raise EncodeError(f"the result of {len(body)} bytes is over the limit of {MAX_RESULT_BYTES}")
        except EncodeError as reason:  # the task has done its work: a value that cannot be kept must not repeat it
            log.warning("%r has no result: %s", message, reason)
            return [_failed(message.uid, reason, str(reason), ttl_s, follow)]
        return [ResultRow(message.uid, body, ttl_s=ttl_s, follow=follow)]

    def of_failure(
        self, message: Message, options: HandlerOptions, failure: Failure, error: BaseException
    ) -> list[ResultRow]:
        """Return the result of a message that has failed, if it is kept or followed; empty if it will be retried."""
        if failure.retry_in_s is not None:
            return []
        ttl_s, follow = self._kept_s(options), message.headers.get(FOLLOW_HEADER)
        failed = _failed(message.uid, error, failure.error, ttl_s, follow)
        return [replace(failed, cancelled=isinstance(error, RunCancelled))]

    def _kept_s(self, options: HandlerOptions) -> float:
        return (options.result_ttl_s or self._ttl_s) if options.keeps_result else 0.0

    def put(self, ended: Sequence[Ended]) -> Sequence[Ended]:
        """Store the results that are not written with the acked offset; return the messages with those that are."""
        if self._putter is None:
            return ended
        for row in (row for one in ended for row in one.results if row.is_kept):
            try:
                self._putter.put(row)
            except Exception as error:  # a result store that is down must not make tasks run twice
                log.error("the result of %s is lost: %s", uid_text(row.uid), redact(text_of(error)))
        return [self.for_flush(one) for one in ended]

    def for_flush(self, ended: Ended) -> Ended:
        """Return the end of a message with the results to write with the acked offset."""
        if self._putter is None or not ended.results:
            return ended
        return ended._replace(results=[replace(row, ttl_s=0.0) for row in ended.results if row.follow is not None])


def _failed(uid: bytes, error: BaseException, traceback: str, ttl_s: float, follow: str | None) -> ResultRow:
    kind = type(error).__name__
    return ResultRow(uid, None, kind[:255], storable(redact(text_of(error))), storable(traceback), ttl_s, follow)
