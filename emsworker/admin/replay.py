"""Replay: run selected messages of a topic again in one group, without publishing them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from emsworker.admin.messages import WINDOW, MessageSearch
from emsworker.admin.selection import Choice, Place, Selection, windows
from emsworker.core.model import Group, Order, Topic
from emsworker.store.engine.database import Database
from emsworker.store.groups import replay as store
from emsworker.store.groups.replay import Replayed, ReplayPiece
from emsworker.store.stream import search
from emsworker.store.stream.search import Born, SearchWindow

_RANGE_WINDOW = 10_000


class Replay:
    """Replay into one group; nothing happens until :meth:`run`.

    No other group is affected, and the group's workers may go on meanwhile: they adopt replayed ranges like those that
    other clients gave back. Messages that the group has not claimed yet, that are running, or that wait for a retry are
    run anyway, and are not doubled. The others are run once more, as if for the first time: their attempts start from
    1, and their dead letters are deleted. In each partition they are handed out in the order of their offsets.

    Attributes:
        length: the number of offsets to examine.
    """

    def __init__(
        self, database: Database, topic: Topic, group: Group, selection: Selection, after: Place | None = None
    ) -> None:
        self._database, self._topic, self._group = database, topic, group
        self._choice = Choice(selection)
        # Messages published from now on are not part of the replay, so that it ends.
        ranges = database.call(lambda session: self._choice.ranges(session, topic))
        self._windows = list(windows(ranges, _RANGE_WINDOW if selection.is_range else WINDOW, after))
        self.length = sum(window.hi - window.lo + 1 for window in self._windows)

    def plan(self, progress: Callable[[Replayed], None] = lambda piece: None) -> list[Replayed]:
        """Return what :meth:`run` would do now, for each partition; change nothing.

        Args:
            progress: called with the result of each window.
        """
        return self._sum(store.plan_piece, progress)

    def run(self, progress: Callable[[Replayed], None] = lambda piece: None) -> list[Replayed]:
        """Replay the messages, and return for each partition what was done.

        It proceeds window by window, each in one transaction. If it is interrupted, continue with ``after`` set to the
        partition and the ``hi`` of the last result that was reported: messages replayed until then may have run
        already, and would be run again otherwise.

        Args:
            progress: called with the result of each window after its commit.

        Raises:
            UnknownGroup: the group was deleted meanwhile.
        """
        return self._sum(store.replay_piece, progress)

    def _sum(self, work: Callable[..., Replayed], progress: Callable[[Replayed], None]) -> list[Replayed]:
        found: dict[int, Replayed] = {}
        for window in self._windows:
            piece, unreadable = self._choose(window)
            one = self._database.call(lambda session, piece=piece: work(session, self._group, piece))  # type: ignore[misc]
            one = replace(one, unreadable=unreadable)
            found[one.partition] = _join(found.get(one.partition), one)
            progress(one)
        return list(found.values())

    def _choose(self, window: SearchWindow) -> tuple[ReplayPiece, int]:
        """Choose messages of a window: places and times as ranges, others one by one.

        A group that runs in order takes ranges in the order of their offsets, but retries as they become due: it gets
        ranges in any case.
        """
        predicate, wanted = self._choice.predicate, self._group.filter
        if self._choice.selection.is_range:
            rows = self._born(window)
            chosen = [born.offset for born in rows if predicate.may_match(born)]
            return ReplayPiece(window, chosen, [born.offset for born in rows]), 0
        between = None
        if self._group.order is not Order.NONE:
            between = [born.offset for born in self._born(window)]
        look = MessageSearch(self._database, self._topic, window, predicate, wanted, bodies=False)
        return ReplayPiece(window, [message.offset for message in look.matching()], between), look.unreadable

    def _born(self, window: SearchWindow) -> list[Born]:
        return self._database.call(lambda session: search.list_wanted(session, window, self._group.filter))


def _join(before: Replayed | None, one: Replayed) -> Replayed:
    if before is None:
        return one
    counts = {
        name: getattr(before, name) + getattr(one, name)
        for name in ("chosen", "again", "live", "unclaimed", "unreadable")
    }
    return replace(before, hi=one.hi, **counts)
