"""Refused rows of ``ems_publish``, behind ``ems refused``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from emsworker.core.errors import UnknownMessage
from emsworker.store.engine.database import Database
from emsworker.store.stream import intake
from emsworker.store.stream.intake import RefusedRow

_CHUNK = 1000


class Refused:
    """Messages that other programs have written by plain SQL, and that cannot be sent as they are.

    Args:
        database: of the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def list(self, *, after: int = 0, limit: int = 100, details: bool = True) -> list[RefusedRow]:
        """List them by id.

        Args:
            after: only higher ids: the last of the list before.
            limit: the maximum number.
            details: with tasks, keys, sizes and errors, which the role ``viewer`` may not read.
        """
        read = intake.list_refused if details else intake.outline_refused
        return self._database.call(lambda session: read(session, after, limit))

    def count(self) -> int:
        """Count them; a thousand stands for a thousand or more."""
        return self._database.call(intake.count_refused)

    def retry(self, ids: Sequence[int] | None = None) -> int:
        """Check them again, for instance after their topic was created; returns how many.

        Args:
            ids: of rows; by default of all that are refused now.

        Raises:
            UnknownMessage: one of the ids is of no refused row; nothing was changed.
        """
        return self._change(intake.retry, ids)

    def delete(self, ids: Sequence[int] | None = None) -> int:
        """Delete them for good; returns how many.

        Args:
            ids: of rows; by default of all that are refused now.

        Raises:
            UnknownMessage: one of the ids is of no refused row; nothing was changed.
        """
        return self._change(intake.delete, ids)

    def _change(self, change: Callable[..., int], ids: Sequence[int] | None) -> int:
        for one in ids or ():
            if self._find(one - 1, 1) != [one]:
                raise UnknownMessage(
                    f"row {one} of ems_publish is not refused; `ems refused list` shows those that are"
                )
        chunks = self._chunks() if ids is None else [ids]
        return sum(self._database.call(partial(change, ids=part)) for part in chunks)

    def _chunks(self) -> Iterator[Sequence[int]]:
        """Yield the ids of all refused rows; those that are refused again meanwhile come no second time."""
        last = 0
        while found := self._find(last, _CHUNK):
            last = found[-1]
            yield found

    def _find(self, after: int, limit: int) -> Sequence[int]:
        return self._database.call(lambda session: intake.find_refused(session, after, limit))
