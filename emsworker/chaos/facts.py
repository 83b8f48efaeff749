"""History and snapshot, indexed for the checker's queries."""

from __future__ import annotations

from collections import Counter, defaultdict

from emsworker.chaos.history import Fault, HandlerRun, History, Sent
from emsworker.chaos.operations import Operations, without_deleted
from emsworker.chaos.report import Rules
from emsworker.extending.stream import ClaimSnapshot, Snapshot

_FINAL = frozenset({"done", "ignored", "expired", "cancelled"})
REPORTING_S = 0.05  # between the records of one moment by two processes


class Facts:
    """Facts from a history and a snapshot.

    Attributes:
        places: the places (partition and offset) of a message in the stream, by topic and uid.
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

    def _live_claims(self) -> dict[tuple[int, int], list[ClaimSnapshot]]:
        live: dict[tuple[int, int], list[ClaimSnapshot]] = defaultdict(list)
        for claim in self.snapshot.claims:
            if claim.state != "done" and claim.source == "stream":
                live[claim.group_id, claim.partition].append(claim)
        return live

    # -- messages ------------------------------------------------------------------------------------------------------

    def place_of(self, sent: Sent) -> tuple[int, int] | None:
        """Return the place of a message, from its confirmation, the stream or a run."""
        if sent.partition is not None and sent.offset is not None:
            return sent.partition, sent.offset
        found = self.places.get(sent.topic, {}).get(sent.uid)
        return found[0] if found else self._run_places.get((sent.topic, sent.uid))

    def is_pending(self, sent: Sent) -> bool:
        """Return whether a message is still in the outbox."""
        return (self._topic_ids.get(sent.topic, -1), sent.uid) in self.snapshot.pending

    def run_anywhere(self, sent: Sent) -> bool:
        """Return whether any group has run a message."""
        return (sent.topic, sent.uid) in self._run_places

    def gone(self, sent: Sent, place: tuple[int, int]) -> str | None:
        """Return the fault of a message's row, if the row should exist."""
        topic_id = self._topic_ids.get(sent.topic)
        if topic_id is None or place[1] < self.snapshot.log_starts.get((topic_id, place[0]), 0):
            return None
        row = self.snapshot.messages[topic_id, place[0]].get(place[1])
        if row is None:
            return f"{sent.uid} was confirmed, and its offset is empty"
        return None if row[0] == sent.uid else f"{sent.uid} was confirmed, and its offset holds {row[0] or row[1]}"

    def groups_of(self, topic: str) -> list[int]:
        """Return the ids of a topic's groups."""
        return self._group_ids[topic]

    def is_final(self, run: HandlerRun) -> bool:
        """Return whether a run finished its message."""
        return run.outcome in _FINAL

    def is_settled(self, group_id: int, sent: Sent, place: tuple[int, int]) -> bool:
        """Return whether a group has settled a message: it is done, dead, given up, cancelled or skipped."""
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
        """Return the maximum number of effects: one, and one for each operation that has the message run again."""
        place = self.place_of(sent)
        return 1 if place is None else 1 + len(self.operations.again(sent.topic, group, *place))

    def kind_at(self, topic_id: int, place: tuple[int, int]) -> str | None:
        """Return the kind of a row: message, tombstone or cancelled; ``None`` if there is no row."""
        row = self.snapshot.messages.get((topic_id, place[0]), {}).get(place[1])
        return row[1] if row else None

    def is_cancelled(self, sent: Sent) -> bool:
        """Return whether the stream records a message as cancelled."""
        topic_id, place = self._topic_ids.get(sent.topic, -1), self.place_of(sent)
        return place is not None and self.kind_at(topic_id, place) == "cancelled"

    def is_skipped(self, group_id: int, partition: int, offset: int) -> bool:
        """Return whether a group has skipped an offset and recorded that."""
        return any(skip[:2] == (group_id, partition) and skip[2] <= offset <= skip[3] for skip in self.snapshot.skips)

    def is_waiting(self, group_id: int, place: tuple[int, int]) -> bool:
        """Return whether a message waits in a group: not claimed, in a live claim, or in retry."""
        partition, offset = place
        if offset >= self.snapshot.cursors.get((group_id, partition), 1) or (group_id, *place) in self.snapshot.retries:
            return True
        return any(claim.acked_to < offset <= claim.hi for claim in self._live[group_id, partition])

    def has_finished(self, group_id: int, sent: Sent) -> bool:
        """Return whether a group has run a message to its end, and was not told to run it again since."""
        return (sent.topic, sent.uid, self.snapshot.groups[group_id].name) in self._finished

    def should_have_effect(self, group: str, sent: Sent) -> bool:
        """Return whether a transactional group recorded a message as done."""
        return (sent.topic, sent.uid, group) in self._done

    # -- faults --------------------------------------------------------------------------------------------------------

    def may_be_repeated(self, run: HandlerRun, *, is_last: bool) -> bool:
        """Return whether a fault hit a finished run before its end could be acknowledged.

        Args:
            is_last: no later run finished in its thread, so its acked offset may never have been written.
        """
        assert run.ended is not None, "asked of finished runs"
        for fault in self._faults_of(run.pid):
            if run.ended <= fault.until + self.rules.healing_s and (
                is_last or run.ended >= fault.at - self.rules.bound_s
            ):
                return True
        return False

    def timed_out(self, run: HandlerRun) -> bool:
        """Return whether a run exceeded its group's timeout, so that the message was handed out again."""
        group_id = self.by_name.get((run.topic, run.group))
        if group_id is None or run.ended is None:
            return False
        return run.ended - run.began > self.snapshot.groups[group_id].timeout_s

    def was_hit(self, run: HandlerRun, until: float) -> bool:
        """Return whether a fault hit a run's process between its beginning and ``until``, so that others took over."""
        return any(
            fault.at - REPORTING_S <= until and fault.until + self.rules.healing_s >= run.began
            for fault in self._faults_of(run.pid)
        )

    def was_away(self, run: HandlerRun, since: float) -> bool:
        """Return whether a run's own process was stopped at a moment and until the run began, so it could not know."""
        return any(
            fault.pid == run.pid and fault.at - REPORTING_S <= since and fault.until + self.rules.bound_s >= run.began
            for fault in self.history.faults
        )

    def _faults_of(self, pid: int) -> list[Fault]:
        return [fault for fault in self.history.faults if fault.pid in (None, pid)]
