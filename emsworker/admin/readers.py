"""Readers outside the groups, behind ``ems readers``: named ones of broadcast topics, and those that hold messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from emsworker.core.counted import counted
from emsworker.core.errors import Problem, UnknownReader
from emsworker.core.ids import check_name, new_uid
from emsworker.core.model import Topic, TopicKind
from emsworker.core.options import is_whole, raise_problems, seconds
from emsworker.store.engine.database import Database
from emsworker.store.stream import broadcast as store
from emsworker.store.stream import holds as hold_store
from emsworker.store.stream.broadcast import ReaderRow
from emsworker.store.stream.holds import HOLD_FOR_S, Hold, HoldRow


@dataclass(frozen=True)
class HoldView:
    """A reader of a topic that holds messages, over all its partitions.

    Attributes:
        rows: one for each partition, in order.
    """

    topic: str
    name: str
    rows: tuple[HoldRow, ...]

    @property
    def lags(self) -> list[int]:
        """Messages that it has not read, by partition."""
        return [row.lag for row in self.rows]

    @property
    def lost(self) -> bool:
        """True if some of its hold is lost, because it was not renewed in time."""
        return any(row.lost_at is not None for row in self.rows)

    @property
    def age_s(self) -> float:
        """Seconds since it was renewed."""
        return min(row.age_s for row in self.rows)

    @property
    def left_s(self) -> float:
        """Seconds until some of it is lost; 0 if it is."""
        return min(row.left_s for row in self.rows)


class Readers:
    """Readers of a stream that belong to no group.

    Args:
        database: the database of the stream.
        topic: finds a topic by its name.
    """

    def __init__(self, database: Database, topic: Callable[[str], Topic]) -> None:
        self._database = database
        self._topic = topic

    def list(self, topic: str | None = None) -> list[ReaderRow]:
        """Return all stored positions of broadcast readers, or those of one topic, by name and partition.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        if topic is not None:
            self._topic(topic)
        return self._database.call(lambda session: store.list_positions(session, topic))

    def forget(self, topic: str, name: str | None = None, *, idle_s: float = 0.0) -> int:
        """Delete positions; a reader that comes back begins at the end of the topic.

        Args:
            name: the name of the reader, ``NAME/WORKER/NUMBER``; without it, all readers of the topic.
            idle_s: only positions that have not been written for this number of seconds.

        Returns:
            the number of deleted rows, one for each partition.

        Raises:
            UnknownTopic, UnknownReader: there is no such topic or reader.
            ConfigError: it is not a broadcast topic.
        """
        place = self._topic(topic).check_kind(TopicKind.BROADCAST)
        count = self._database.call(lambda session: store.forget_positions(session, place.id, name, idle_s))
        if not count and name is not None and not idle_s:
            raise UnknownReader(
                f"topic {topic!r} keeps no position of a reader {name!r}; `ems readers list` shows those that it keeps"
            )
        return count

    # -- holds ---------------------------------------------------------------------------------------------------------

    def holds(self, topic: str | None = None) -> Sequence[HoldView]:
        """Return the readers that hold messages, of all topics or of one, by topic and name.

        Raises:
            UnknownTopic: there is no topic of that name.
        """
        if topic is not None:
            self._topic(topic)
        rows = self._database.call(lambda session: hold_store.list_holds(session, topic))
        return [HoldView(*place, tuple(of_one)) for place, of_one in groupby(rows, lambda row: (row.topic, row.name))]

    def hold(self, topic: str, name: str, offsets: Mapping[int, int], *, hold_for_s: int = HOLD_FOR_S) -> None:
        """Keep retention from what a reader has not read, until it is called again or the time is over.

        Streaming queries of Spark do this by themselves, with the option ``holdName``.

        Args:
            name: the reader; a call with the same name moves its hold, forwards or back.
            offsets: the next offset that it reads, by partition: from 1 to the one after the last message.
            hold_for_s: seconds after which the hold is lost.

        Raises:
            ConfigError: a partition does not exist, or an offset or the time is out of range.
            InvalidName: the name breaks the rules.
            UnknownTopic: there is no topic of that name.
        """
        check_name("reader", name)
        place, reader = self._topic(topic), new_uid()
        # Neither a partition nor an offset is ever taken back, so what is found here still holds when it is written.
        ends = self._database.call(lambda session: hold_store.list_ends(session, place.id))
        raise_problems([*_place_problems(topic, offsets, ends), *seconds(1).problems("hold_for_s", hold_for_s)])
        wanted = [Hold(place.id, name, number, reader, at, at, int(hold_for_s)) for number, at in offsets.items()]
        self._database.call(lambda session: hold_store.take(session, wanted))

    def release(self, topic: str, name: str) -> int:
        """Delete a reader's hold, so that retention goes on; a query that still runs takes it again.

        Returns:
            the number of partitions that it held.

        Raises:
            UnknownTopic, UnknownReader: there is no such topic or hold.
        """
        place = self._topic(topic)
        count = self._database.call(lambda session: hold_store.release(session, place.id, name))
        if not count:
            raise UnknownReader(
                f"no reader {name!r} holds messages of topic {topic!r}; `ems readers list` shows those that do"
            )
        return count


def _place_problems(topic: str, offsets: Mapping[int, int], ends: Mapping[int, int]) -> Iterator[Problem]:
    """Return what is wrong with the places of a hold.

    Args:
        ends: the offset after the last message of each partition.
    """
    for partition, offset in offsets.items():
        if not is_whole(partition) or partition not in ends:
            fix = f"topic {topic!r} has {counted(len(ends), 'partition')}, numbered from 0"
            yield Problem("partition", repr(partition), fix)
        elif not is_whole(offset) or not 1 <= offset <= ends[partition]:
            fix = f"must be a whole number from 1 to {ends[partition]}, where the next message comes"
            yield Problem(f"offset of partition {partition}", repr(offset), fix)
