"""A history and a snapshot, made ready for the questions that the checker asks of them."""

from __future__ import annotations

from collections import Counter, defaultdict

from emsworker.chaos.history import Fault, History, Run, Sent
from emsworker.chaos.operations import Operations, without_deleted
from emsworker.chaos.report import Rules
from emsworker.store.snapshot import ClaimRow, Snapshot

_FINAL = frozenset({"done", "ignored", "expired"})
_TELLING_S = 0.05  # between two processes that write down the same moment


class Facts:
    """What is known.

    Attributes:
        places: by topic and uid, where the stream has it: partition and offset.
        by_name: the id of a group by topic and name.
    """

    def __init__(self, history: History, snapshot: Snapshot, rules: Rules) -> None:
        self.history, self.snapshot, self.rules = without_deleted(history), snapshot, rules
        history = self.history
        self.operations = Operations(history.operations, rules.bound_s)
        self._topic_ids = {name: topic_id for topic_id, name in snapshot.topics.items()}
        self._group_ids: dict[str, list[int]] = defaultdict(list)
        for group_id, group in snapshot.groups.items():
            self._group_ids[snapshot.topics[group.topic_id]].append(group_id)
        self.by_name = {
            (snapshot.topics[group.topic_id], group.name): group_id for group_id, group in snapshot.groups.items()
        }
        self.places = self._places()
        final = [run for run in history.runs if self.is_final(run)]
        stale = [run for run in final if self.operations.is_stale(run)]
        self._finished = {(run.topic, run.uid, run.group) for run in set(final) - set(stale)}
        self._stale = Counter((run.topic, run.uid, run.group) for run in stale)
        self._done = {(run.topic, run.uid, run.group) for run in history.runs if run.outcome == "done"}
        self._run_places = {(run.topic, run.uid): (run.partition, run.offset) for run in history.runs}
        self._live = self._live_claims()

    def _places(self) -> dict[str, dict[str, list[tuple[int, int]]]]:
        places: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
        for (topic_id, partition), messages in self.snapshot.messages.items():
            for offset, (uid, _) in messages.items():
                if uid is not None:
                    places[self.snapshot.topics[topic_id]][uid].append((partition, offset))
        return places

    def _live_claims(self) -> dict[tuple[int, int], list[ClaimRow]]:
        live: dict[tuple[int, int], list[ClaimRow]] = defaultdict(list)
        for claim in self.snapshot.claims:
            if claim.state != "done" and claim.source == "stream":
                live[claim.group_id, claim.partition].append(claim)
        return live

    # -- messages ------------------------------------------------------------------------------------------------------

    def place_of(self, sent: Sent) -> tuple[int, int] | None:
        """Where a message is, or was when somebody was told."""
        if sent.partition is not None and sent.offset is not None:
            return sent.partition, sent.offset
        found = self.places.get(sent.topic, {}).get(sent.uid)
        return found[0] if found else self._run_places.get((sent.topic, sent.uid))

    def is_pending(self, sent: Sent) -> bool:
        """Whether it may not be read yet."""
        return (self._topic_ids.get(sent.topic, -1), sent.uid) in self.snapshot.pending

    def run_anywhere(self, sent: Sent) -> bool:
        """Whether any group has run it."""
        return (sent.topic, sent.uid) in self._run_places

    def gone(self, sent: Sent, place: tuple[int, int]) -> str | None:
        """What is wrong with its row, if it should be there."""
        topic_id = self._topic_ids.get(sent.topic)
        if topic_id is None or place[1] < self.snapshot.log_starts.get((topic_id, place[0]), 0):
            return None
        row = self.snapshot.messages[topic_id, place[0]].get(place[1])
        if row is None:
            return f"{sent.uid} was confirmed, and its offset is empty"
        return None if row[0] == sent.uid else f"{sent.uid} was confirmed, and its offset holds {row[0] or row[1]}"

    def groups_of(self, topic: str) -> list[int]:
        """The ids of a topic's groups."""
        return self._group_ids[topic]

    def is_final(self, run: Run) -> bool:
        """Whether a run ended its message."""
        return run.outcome in _FINAL

    def is_settled(self, group_id: int, sent: Sent, place: tuple[int, int]) -> bool:
        """Whether a group has no more to do with a message: it is done, dead, given up, cancelled or skipped."""
        group = self.snapshot.groups[group_id]
        where, who = (group_id, *place), (sent.topic, sent.uid, group.name)
        return (
            who in self._finished
            or self.rules.effects.get(group.name, {}).get(sent.uid, 0) > self._stale[who]
            or where in self.snapshot.dead
            or (where in self.snapshot.given_up and not self._revived(sent, group.name, place))
            or (self.kind_at(group.topic_id, place) == "cancelled" and self.operations.may_be_cancelled(sent))
            or self.is_skipped(group_id, *place)
            or self.operations.precedes(sent.topic, group.name, *place)
        )

    def _revived(self, sent: Sent, group: str, place: tuple[int, int]) -> bool:
        requeued = self.operations.is_requeued(sent.uid, sent.topic, group)
        return requeued or bool(self.operations.again(sent.topic, group, *place))

    def most_effects(self, group: str, sent: Sent) -> int:
        """How often an effect may be there: once, and once more for each operation that has it run again."""
        place = self.place_of(sent)
        return 1 if place is None else 1 + len(self.operations.again(sent.topic, group, *place))

    def kind_at(self, topic_id: int, place: tuple[int, int]) -> str | None:
        """Message, tombstone or cancelled; ``None`` if there is no row."""
        row = self.snapshot.messages.get((topic_id, place[0]), {}).get(place[1])
        return row[1] if row else None

    def is_cancelled(self, sent: Sent) -> bool:
        """True if the stream says that a message was cancelled."""
        topic_id, place = self._topic_ids.get(sent.topic, -1), self.place_of(sent)
        return place is not None and self.kind_at(topic_id, place) == "cancelled"

    def is_skipped(self, group_id: int, partition: int, offset: int) -> bool:
        """Whether a group has left it out, and said so."""
        return any(skip[:2] == (group_id, partition) and skip[2] <= offset <= skip[3] for skip in self.snapshot.skips)

    def is_waiting(self, group_id: int, place: tuple[int, int]) -> bool:
        """Whether a group has it before it: not claimed, in a live claim, or in retry."""
        partition, offset = place
        if offset >= self.snapshot.cursors.get((group_id, partition), 1) or (group_id, *place) in self.snapshot.retries:
            return True
        return any(claim.acked_to < offset <= claim.hi for claim in self._live[group_id, partition])

    def should_have_effect(self, group: str, sent: Sent) -> bool:
        """Whether a transactional group says that it has done a message."""
        return (sent.topic, sent.uid, group) in self._done

    # -- faults --------------------------------------------------------------------------------------------------------

    def may_be_repeated(self, run: Run, *, is_last: bool) -> bool:
        """Whether a finished run was hit by a fault before anybody could know that it had finished.

        Args:
            is_last: nothing finished after it in its thread, so its acked offset may never have been written.
        """
        assert run.ended is not None, "asked of finished runs"
        for fault in self._faults_of(run.pid):
            if run.ended <= fault.until + self.rules.healing_s and (
                is_last or run.ended >= fault.at - self.rules.bound_s
            ):
                return True
        return False

    def timed_out(self, run: Run) -> bool:
        """True if a run took longer than its group allows, so that the message was given to another one."""
        group_id = self.by_name.get((run.topic, run.group))
        if group_id is None or run.ended is None:
            return False
        return run.ended - run.began > self.snapshot.groups[group_id].timeout_s

    def was_hit(self, run: Run, until: float) -> bool:
        """Whether a fault hit a run's process between its beginning and a later moment, so that others took it over."""
        return any(
            fault.at - _TELLING_S <= until and fault.until + self.rules.healing_s >= run.began
            for fault in self._faults_of(run.pid)
        )

    def _faults_of(self, pid: int) -> list[Fault]:
        return [fault for fault in self.history.faults if fault.pid in (None, pid)]
