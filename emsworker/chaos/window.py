"""Incremental checker of an endless history: settled messages are checked, counted and forgotten.

:func:`check_stream` holds a whole history. A :class:`CheckWindow` continues where it stopped, and forgets the
messages of a partition below a *horizon*: below it retention has deleted everything (so every group has run it, or
given it up), and nothing has happened for a while. Any later event of an offset below the horizon is a finding in
itself, so forgetting overlooks nothing. Memory is bounded by the size of the retained stream and by ``linger_s``, and
with ``prune`` so is the folder, if the recorders roll their files.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from emsworker.chaos.checker import check
from emsworker.chaos.history import Gathering, HandlerRun, Sent
from emsworker.chaos.report import ChaosReport, Kind, Rules, Violation
from emsworker.extending.database import Database
from emsworker.extending.stream import Snapshot, read_snapshot

_UNSENT_S = 300.0  # a send that is not confirmed or seen by then never will be
_FAULTS_S = 300.0
_FINAL = frozenset({"done", "ignored", "expired", "cancelled"})

Lane = tuple[str, int]  # topic and partition
Where = tuple[Any, ...]


class Effects(Protocol):
    """Counter of the effects of transactional handlers, which can forget settled messages."""

    def read(self) -> Mapping[str, Mapping[str, int]]:
        """Return the number of each message's effects, by group."""

    def forget(self, uids: Collection[str]) -> None:
        """Forget the effects of these messages, which are settled."""


class NoEffects:
    """Effects of a stream without transactional groups: none."""

    def read(self) -> Mapping[str, Mapping[str, int]]:
        """Return no effects."""
        return {}

    def forget(self, uids: Collection[str]) -> None:
        """Do nothing."""


class CheckWindow:
    """Checker that reads and checks a history while it is written, with each call of :meth:`look`.

    A finding counts if two looks in a row have it: its explanation, such as a lost lease, may be recorded late.
    Until then nothing is forgotten.

    Args:
        database: the database of the stream; folder: the folder of the history.
        linger_s: the time for which a message is remembered after its last event; longer than ``rules.healing_s``, or
            a late repetition would no longer have an explanation.
        effects: the effects of transactional handlers, if there are any.
        on_begin: called when a group has begun its first run of a message: with its send, the group and the time.
        prune: delete files that were read to their end and will no longer grow.
    """

    def __init__(
        self,
        database: Database,
        folder: Path | str,
        rules: Rules | None = None,
        *,
        linger_s: float = 30.0,
        effects: Effects | None = None,
        on_begin: Callable[[Sent, str, float], None] | None = None,
        prune: bool = False,
    ) -> None:
        self._database, self._rules, self._linger_s = database, rules or Rules(), linger_s
        self._effects: Effects = effects or NoEffects()
        self._on_begin = on_begin
        self._files = _Files(Path(folder), prune)
        self._gathering = Gathering()
        self._horizons: dict[Lane, int] = {}
        self._late: list[Violation] = []
        self._suspects: set[Where] = set()
        self._told: set[Where] = set()
        self._asked = self._confirmed = self._runs = self._repeated = 0

    def __len__(self) -> int:
        """Return the number of remembered sends and runs."""
        history = self._gathering.history
        return len(history.sent) + len(history.runs) + len(self._gathering.begun)

    def look(self, settled: bool = False) -> ChaosReport:
        """Read new events, check, and forget settled messages.

        Args:
            settled: all work is done, and no process writes any more: a finding counts at once.

        Returns:
            the counts since the beginning, and the findings that no earlier look has returned.
        """
        self._files.read()
        confirmed = self._confirmed_so_far()
        snapshot = self._database.call(read_snapshot)
        self._cut(snapshot)
        rules = replace(self._rules, effects=self._effects.read(), settled=settled)
        self._files.read()
        until = self._files.latest
        self._files.read()  # now the causes of all events read before are present
        self._take(until)
        history = self._gathering.whole()
        history.sent = {
            where: sent if where in confirmed else replace(sent, confirmed_at=None)
            for where, sent in history.sent.items()
        }
        report = check(history, snapshot, rules)
        found = self._sure([*report.findings, *self._late], settled)
        repeated = self._repeated + report.repeated
        if not self._suspects:
            self._forget(snapshot, until)
        return ChaosReport(self._asked, self._confirmed, self._runs, repeated, found)

    def _confirmed_so_far(self) -> set[tuple[str, str]]:
        known = {where for where, sent in self._gathering.history.sent.items() if sent.confirmed_at is not None}
        return known | {(event["topic"], event["as_uid"]) for event in self._files.held if event["event"] == "sent"}

    def _cut(self, snapshot: Snapshot) -> None:
        """Remove rows below the horizon, which may wait for their deletion, from the snapshot."""
        for (topic_id, partition), messages in snapshot.messages.items():
            horizon = self._horizons.get((snapshot.topics[topic_id], partition), 0)
            for offset in [offset for offset in messages if offset < horizon]:
                del messages[offset]

    def _take(self, until: float) -> None:
        history, begun = self._gathering.history, []
        for event in self._files.take(until):
            kind = event["event"]
            if kind == "begin":
                if self._is_late(event):
                    continue
                begun.append(event)
            elif kind == "end":
                if event["run"] not in self._gathering.begun:
                    continue  # the end of a zombie's run of a settled message
                self._runs += 1
            elif kind == "sent":
                if (event["topic"], event["uid"]) not in history.sent:
                    continue  # a zombie's confirmation of a settled send
                self._confirmed += 1
            self._asked += kind == "send"
            self._gathering.take(event)
        if self._on_begin is not None:
            self._tell_begun(begun)

    def _is_late(self, event: dict[str, Any]) -> bool:
        topic, (partition, offset) = event["topic"], event["place"]
        if offset >= self._horizons.get((topic, partition), 0):
            return False
        text = f"{event['uid']} was run again after retention had deleted it"
        self._late.append(Violation(Kind.DUPLICATE, f"{topic}/{partition}/{offset}", text, event["group"]))
        return True

    def _tell_begun(self, begun: list[dict[str, Any]]) -> None:
        """Call ``on_begin`` after all events were taken, because a run may be read before its send."""
        assert self._on_begin is not None
        for event in begun:
            sent = self._gathering.history.sent.get((event["topic"], event["uid"]))
            if sent is not None and event["attempt"] == 1:
                self._on_begin(sent, event["group"], event["at"])

    def _sure(self, found: list[Violation], settled: bool) -> list[Violation]:
        """Return the findings that an earlier look has found as well, but not returned."""
        new = {(one.kind, one.where, one.group): one for one in found}
        new = {where: one for where, one in new.items() if where not in self._told}
        sure = [one for where, one in new.items() if settled or where in self._suspects]
        self._told |= {(one.kind, one.where, one.group) for one in sure}
        self._suspects = new.keys() - self._told
        if sure:
            self._late = [one for one in self._late if (one.kind, one.where, one.group) not in self._told]
        return sure

    # -- forgetting ----------------------------------------------------------------------------------------------------

    def _forget(self, snapshot: Snapshot, now: float) -> None:
        history = self._gathering.history
        log_starts = {
            (snapshot.topics[topic_id], partition): log_start
            for (topic_id, partition), log_start in snapshot.log_starts.items()
        }
        places, recent = self._places(now)
        for lane, log_start in log_starts.items():
            self._horizons[lane] = max(self._horizons.get(lane, 0), min(log_start, recent.get(lane, log_start)))
        pending = {(snapshot.topics.get(topic_id), uid) for topic_id, uid in snapshot.pending}
        gone = {
            where
            for where, sent in history.sent.items()
            if (
                self._is_below(where[0], *places[where])
                if where in places
                else sent.confirmed_at is None and sent.at < now - _UNSENT_S and where not in pending
            )
        }
        for where in gone:
            del history.sent[where]
        history.answers = [answer for answer in history.answers if (answer.topic, answer.uid) not in gone]
        self._forget_runs()
        oldest = min((run.began for run in history.runs), default=now) - _FAULTS_S
        history.faults = [fault for fault in history.faults if fault.until >= oldest]
        self._effects.forget({uid for _, uid in gone})

    def _places(self, now: float) -> tuple[dict[tuple[str, str], tuple[int, int]], dict[Lane, int]]:
        """Return the known place of each message, and the first offset of each partition with a recent event."""
        places: dict[tuple[str, str], tuple[int, int]] = {}
        recent: dict[Lane, int] = {}

        def happened(topic: str, partition: int, offset: int, at: float) -> None:
            if at > now - self._linger_s:
                recent[topic, partition] = min(offset, recent.get((topic, partition), offset))

        for run in self._gathering.whole().runs:
            places[run.topic, run.uid] = run.partition, run.offset
            happened(*run.place, run.began if run.ended is None else run.ended)
        for where, sent in self._gathering.history.sent.items():
            if sent.partition is not None and sent.offset is not None:
                places[where] = sent.partition, sent.offset
                happened(sent.topic, sent.partition, sent.offset, sent.confirmed_at or sent.at)
        return places, recent

    def _is_below(self, topic: str, partition: int, offset: int) -> bool:
        return offset < self._horizons.get((topic, partition), 0)

    def _forget_runs(self) -> None:
        gathering = self._gathering
        ended: Counter[Where] = Counter()
        kept: list[HandlerRun] = []
        for run in gathering.history.runs:
            if not self._is_below(*run.place):
                kept.append(run)
            elif run.outcome in _FINAL:
                ended[run.topic, run.uid, run.group] += 1
        self._repeated += sum(ended.values()) - len(ended)
        gathering.history.runs = kept
        gathering.begun = {number: run for number, run in gathering.begun.items() if not self._is_below(*run.place)}


class _Files:
    """Reader of files that grow.

    Attributes:
        held: the events that were read and not taken yet; latest: the time of the last event that was read.
    """

    def __init__(self, folder: Path, prune: bool) -> None:
        self._folder, self._prune = folder, prune
        self._read_to: dict[str, int] = {}
        self.held: list[dict[str, Any]] = []
        self.latest = -float("inf")

    def read(self) -> None:
        """Read all new events, and with ``prune`` delete files that were read to their end and no longer grow."""
        paths = sorted(self._folder.glob("*.jsonl"))
        for path, after in zip(paths, [*paths[1:], None], strict=True):
            # Determined before reading: from then on no process writes to the file.
            over = (after is not None and _log(after) == _log(path)) or not _is_alive(path)
            self._read(path)
            if over and self._prune:
                path.unlink()
                del self._read_to[path.name]

    def _read(self, path: Path) -> None:
        begin = self._read_to.get(path.name, 0)
        with path.open("rb") as file:
            file.seek(begin)
            lines = file.read()
        whole = lines.rfind(b"\n") + 1
        for line in lines[:whole].splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                raise ValueError(f"{path} has a line that is none of a history: {line[:80]!r}") from None
            self.latest = max(self.latest, event["at"])
            self.held.append(event)
        self._read_to[path.name] = begin + whole

    def take(self, until: float) -> list[dict[str, Any]]:
        """Return and remove the events up to a moment; the events of a process are in order."""
        taken = [event for event in self.held if event["at"] <= until]
        self.held = [event for event in self.held if event["at"] > until]
        return taken


def _log(path: Path) -> str:
    """Return the log that a file belongs to; the next file of the same log sorts after it."""
    return path.name.rsplit("-", 1)[0]


def _is_alive(path: Path) -> bool:
    return Path(f"/proc/{path.name.split('-')[0]}").exists()
