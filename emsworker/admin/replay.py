"""Replay: run selected messages of a topic again in one group, without publishing them again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf

from emsworker.admin.messages import STEP, MessageSearch
from emsworker.admin.selection import Choice, Place, Selection, in_steps
from emsworker.core.model import Group, Order, Topic
from emsworker.core.offsets import OffsetRange
from emsworker.core.preview import FullDecoder
from emsworker.core.process.clock import ticks
from emsworker.store.engine.database import Database
from emsworker.store.groups import replay as store
from emsworker.store.groups.replay import Replayed, ReplayPart
from emsworker.store.stream import search
from emsworker.store.stream.search import Born

_RANGE_STEP = 10_000


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
        self._steps = list(in_steps(ranges, _RANGE_STEP if selection.is_range else STEP, after))
        self.length = sum(map(len, self._steps))

    def plan(
        self, progress: Callable[[Replayed], None] = lambda part: None, *, within_s: float = inf
    ) -> list[Replayed]:
        """Return what :meth:`run` would do now, for each partition; change nothing.

        Args:
            progress: called with the result of each step.
            within_s: seconds that looking at the messages may take.

        Raises:
            TimeoutError: it takes longer.
        """
        until = ticks() + within_s

        def report(part: Replayed) -> None:
            progress(part)
            if ticks() >= until:
                raise TimeoutError("looking at the messages takes too long")

        return self._sum(store.plan, report, until)

    def run(self, progress: Callable[[Replayed], None] = lambda part: None) -> list[Replayed]:
        """Replay the messages, and return for each partition what was done.

        It proceeds in steps of some offsets, each in one transaction. If it is interrupted, continue with ``after`` set
        to ``last`` of the result that was reported last: messages replayed until then may have
        run already, and would be run again otherwise.

        Args:
            progress: called with the result of each step after its commit.

        Raises:
            UnknownGroup: the group was deleted meanwhile.
        """
        return self._sum(store.replay, progress)

    def _sum(
        self, work: Callable[..., Replayed], progress: Callable[[Replayed], None], until: float = inf
    ) -> list[Replayed]:
        found: dict[int, Replayed] = {}
        for step in self._steps:
            part, unreadable = self._choose(step, until)
            one = replace(self._database.call(partial(work, group=self._group, part=part)), unreadable=unreadable)
            found[step.partition] = _join(found.get(step.partition), one)
            progress(one)
        return list(found.values())

    def _choose(self, step: OffsetRange, until: float) -> tuple[ReplayPart, int]:
        """Choose messages of a range: places and times as ranges, others one by one.

        A group that runs in order takes ranges in the order of their offsets, but retries as they become due: it gets
        ranges in any case.
        """
        predicate, wanted = self._choice.predicate, self._group.filter
        if self._choice.selection.is_range:
            rows = self._born(step)
            chosen = [born.offset for born in rows if predicate.may_match(born)]
            return ReplayPart(step, chosen, [born.offset for born in rows]), 0
        between = None
        if self._group.order is not Order.NONE:
            between = [born.offset for born in self._born(step)]
        decoder = FullDecoder(until)
        one = MessageSearch(self._database, self._topic, step, predicate, wanted, decoder=decoder, bodies=False)
        return ReplayPart(step, [message.offset for message in one.matching()], between), one.unreadable

    def _born(self, step: OffsetRange) -> list[Born]:
        return self._database.call(lambda session: search.list_wanted(session, step, self._group.filter))


def _join(before: Replayed | None, one: Replayed) -> Replayed:
    if before is None:
        return one
    counts = {
        name: getattr(before, name) + getattr(one, name)
        for name in ("chosen", "again", "live", "unclaimed", "unreadable")
    }
    return replace(before, offsets=replace(before.offsets, end=one.offsets.end), **counts)
