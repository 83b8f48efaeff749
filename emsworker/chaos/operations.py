"""Effects of the operations in a history: the messages that each removes, and those that it has run again.

Without them a reset looks like messages that are run twice, and a deleted topic like messages that were lost. An
operation explains exactly its effect: one more run of the messages that it covers, and only from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from emsworker.chaos.history import Deed, HandlerRun, History, Operation, Sent

Epoch = tuple[float, ...]


class Operations:
    """Operations of a history, for the checker's queries.

    Args:
        operations: all operations of the history.
        bound_s: the maximum time for which an owner continues before it learns that its claim was taken away.
    """

    def __init__(self, operations: Sequence[Operation], bound_s: float) -> None:
        self._all, self._bound_s = sorted(operations, key=lambda one: one.at), bound_s

    def _of(self, topic: str, *deeds: Deed, group: str | None = None) -> Iterator[Operation]:
        for one in self._all:
            if one.deed in deeds and one.topic == topic and group in (None, one.group):
                yield one

    # -- messages that are run again -----------------------------------------------------------------------------------

    def again(self, topic: str, group: str, partition: int, offset: int) -> list[Operation]:
        """Return the resets and replays that have a message run once more, in chronological order."""
        return [one for one in self._of(topic, Deed.RESET, Deed.REPLAY, group=group) if one.covers(partition, offset)]

    def explains(self, run: HandlerRun, following: HandlerRun) -> bool:
        """Return whether an operation lies between two runs of a message, so that the second is not a repetition."""
        again = self.again(run.topic, run.group, run.partition, run.offset)
        return any(one.at <= following.began and one.until >= run.began for one in again)

    def is_stale(self, run: HandlerRun) -> bool:
        """Return whether a run had ended before an operation requested another; it no longer settles the message."""
        return any(
            run.ended is not None and run.ended < one.at - (self._bound_s if one.deed is Deed.REPLAY else 0)
            for one in self.again(run.topic, run.group, run.partition, run.offset)
        )

    def takes_away(self, run: HandlerRun, until: float) -> bool:
        """Return whether a reset took a message from its owner during a run, so that another may run it in parallel."""
        return any(
            one.deed is Deed.RESET and one.at <= until and one.until + self._bound_s >= run.began
            for one in self.again(run.topic, run.group, run.partition, run.offset)
        )

    def is_requeued(self, uid: str, topic: str, group: str) -> bool:
        """Return whether a dead letter was requeued."""
        return any(uid in one.uids for one in self._of(topic, Deed.REQUEUE, group=group))

    # -- order ---------------------------------------------------------------------------------------------------------

    def epoch(self, run: HandlerRun, is_repeated: bool) -> Epoch | None:
        """Return the pass over the stream that a run belongs to; ``None`` if it is unknown, or the run has no order.

        Args:
            is_repeated: the message had been run to its end before.
        """
        passes: list[float] = []
        for one in self._of(run.topic, Deed.RESET, Deed.REPLAY, Deed.REQUEUE, group=run.group):
            if one.deed is Deed.REQUEUE:
                if run.uid in one.uids and run.began >= one.at:
                    return None
                continue
            first, last = one.ranges.get(run.partition, (1, 0))
            if first > last or run.offset < first or (one.deed is Deed.REPLAY and run.offset > last):
                continue
            if run.began >= one.at:
                if run.began <= one.until + self._bound_s:
                    return None  # perhaps a run of the former owner, which learns of it only when it acknowledges
                if one.deed is Deed.RESET or is_repeated:
                    passes.append(one.at)
        return tuple(passes)

    # -- messages that are removed -------------------------------------------------------------------------------------

    def may_be_cancelled(self, sent: Sent) -> bool:
        """Return whether a message may have been cancelled or purged after it was sent, or no operation is known."""
        return not self._all or self.cancelled_at(sent) is not None

    def cancelled_at(self, sent: Sent) -> Operation | None:
        """Return the operation that may have cancelled a message."""
        for one in self._of(sent.topic, Deed.CANCEL, Deed.PURGE):
            if sent.uid in one.uids or (one.deed is Deed.PURGE and sent.at <= one.until):
                return one
        return None

    def precedes(self, topic: str, group: str, partition: int, offset: int) -> bool:
        """Return whether a message lies before the beginning of a group that was added."""
        return any(one.covers(partition, offset) for one in self._of(topic, Deed.ADD_GROUP, group=group))


def without_deleted(history: History) -> History:
    """Return the history without the messages that were deleted together with a topic.

    Messages that were sent before the topic existed again may have been lost with it, or may be in the new topic: the
    only guarantee is that they were sent.
    """
    ends: dict[str, float] = {}
    for one in history.operations:
        if one.deed is Deed.DELETE_TOPIC:
            ends[one.topic] = max(one.until, ends.get(one.topic, one.until))
    if not ends:
        return history
    gone = {where for where, sent in history.sent.items() if sent.topic in ends and sent.at <= ends[sent.topic]}
    sent = {
        where: replace(one, confirmed_at=None, partition=None, offset=None) if where in gone else one
        for where, one in history.sent.items()
    }
    return replace(history, sent=sent, runs=[run for run in history.runs if (run.topic, run.uid) not in gone])
