"""History of a test: one file per process, to which every send, run and fault is appended before it takes effect.

A line is written with one system call and synced, so it survives a kill -9 of the process, and a crash of the machine.
Only the last line of a file can be incomplete, and it is left out.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from emsworker.extending.apps import Middleware
from emsworker.extending.processes import forks
from emsworker.extending.publishing import Outgoing
from emsworker.extending.values import Message, Outcome, Receipt, encode_key, new_uid, uid_text


class Log:
    """Log that appends events to a file of the calling process.

    Args:
        folder: the folder of the files of all processes; made if it is missing.
        sync: flush every line to the disk; without it a line survives the death of the process, but not of the machine.
        clock: the time in seconds. The default counts from the start of the machine and ignores changes of its date;
            use ``time.time`` if processes on several machines write one history.
        roll_bytes: begin a new file when one has this size, so that :class:`~emsworker.chaos.Window` can delete files
            that it has read; ``None``: never.
    """

    def __init__(
        self,
        folder: Path | str,
        sync: bool = True,
        clock: Callable[[], float] = time.monotonic,
        roll_bytes: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._sync = sync
        self._clock = clock
        self._roll_bytes = roll_bytes
        self._pid = 0
        self._name, self._number = "", 0
        self._file = -1
        self._written = 0
        self._preamble = forks.Lock()

    def note(self, event: str, **values: Any) -> None:
        """Append one event with its time; it is stored when this returns."""
        if self._pid != os.getpid():
            with self._preamble:
                if self._pid != os.getpid():  # a forked child inherits the file, but must not write to it
                    self._name, self._number = f"{os.getpid()}-{new_uid().hex()}", 0
                    self._open()
        line = json.dumps({"event": event, "at": self._clock(), **values}, separators=(",", ":")).encode() + b"\n"
        if self._roll_bytes is None:
            self._write(line)
            return
        with self._preamble:  # no thread writes to a file after its successor exists
            if self._written >= self._roll_bytes:
                full = self._file
                self._number += 1
                self._open()
                os.close(full)
            self._written += len(line)
            self._write(line)

    def _write(self, line: bytes) -> None:
        os.write(self._file, line)
        if self._sync:
            os.fsync(self._file)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{self._name}-{self._number:08}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._pid, self._written = os.getpid(), 0


class Recorder(Middleware):
    """Middleware that writes the history of an app: before and after each send and each run.

    Every message gets its id before it is sent, so that a message whose confirmation was lost is known too.

    Args:
        folder, sync, clock, roll_bytes: as in :class:`Log`.
    """

    def __init__(
        self,
        folder: Path | str,
        sync: bool = True,
        clock: Callable[[], float] = time.monotonic,
        roll_bytes: int | None = None,
    ) -> None:
        self._log = Log(folder, sync, clock, roll_bytes)
        self._running: dict[tuple[int, str], str] = {}

    def before_publish(self, outgoing: Outgoing) -> None:
        """Record a message that is about to be sent."""
        if outgoing.uid is None:
            outgoing.uid = uid_text(new_uid())
        self._log.note("send", uid=str(outgoing.uid), topic=outgoing.topic, key=_text(outgoing.key))

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Record that a message is confirmed, and its place."""
        place = {"partition": receipt.partition, "offset": receipt.offset}
        self._log.note("sent", uid=str(outgoing.uid), as_uid=receipt.id, topic=receipt.topic, **place)

    def before_run(self, message: Message, group: str) -> None:
        """Record that a run begins."""
        number = self._running[id(message), group] = uid_text(new_uid())
        self._log.note(
            "begin",
            run=number,
            uid=message.id,
            topic=message.topic,
            place=[message.partition, message.offset],
            key=_text(message.key_bytes),
            group=group,
            attempt=message.attempt,
            process=[os.getpid(), threading.get_native_id()],
        )

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Record the outcome of a run."""
        number = self._running.pop((id(message), group), None)
        if number is not None:
            self._log.note("end", run=number, outcome=outcome.value)


def _text(key: str | bytes | None) -> str | None:
    raw = encode_key("key", key)
    return None if raw is None else raw.decode("latin-1")


@dataclass(frozen=True)
class Sent:
    """Message of a send request.

    Attributes:
        key: one character for each byte.
        confirmed_at: the time when its send returned, or ``None``: then it may or may not be in the stream.
        partition, offset: its place, as returned to its sender; ``None`` while it is delayed.
    """

    uid: str
    topic: str
    key: str | None
    at: float
    confirmed_at: float | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True)
class HandlerRun:
    """Run of a message in a group.

    Attributes:
        pid, thread: the ids of the process and the thread, as in client ids.
        ended: the time of its end, or ``None`` if its process died in it.
    """

    uid: str
    topic: str
    partition: int
    offset: int
    group: str
    pid: int
    began: float
    ended: float | None = None
    outcome: str | None = None
    key: str | None = None
    attempt: int = 1
    thread: int = 0

    @property
    def place(self) -> tuple[str, int, int]:
        """Topic, partition and offset."""
        return self.topic, self.partition, self.offset


@dataclass(frozen=True)
class Fault:
    """Fault that was injected.

    Attributes:
        at, until: the times when it began, and when everything worked again.
        pid: the id of the process that it hit, or ``None`` if it hit all.
    """

    name: str
    at: float
    until: float
    pid: int | None = None


class Deed(StrEnum):
    """Kind of an operation that removes messages or has them run again."""

    RESET = "reset"
    REPLAY = "replay"
    REQUEUE = "requeue"
    CANCEL = "cancel"
    PURGE = "purge"
    ADD_GROUP = "add group"
    DELETE_TOPIC = "delete topic"


@dataclass(frozen=True)
class Operation:
    """Operation by an operator while the history was written.

    Attributes:
        at, until: the times when it was requested, and when it had taken effect; for a topic that was deleted and
            created again, when it existed again.
        group: the group of a reset, a replay or a requeue, or the added group.
        ranges: by partition the first and the last offset that are delivered again; for an added group, those before
            its beginning.
        uids: the uids of the requeued dead letters, or of the messages that were cancelled before any group had
            finished them.
    """

    deed: Deed
    topic: str
    at: float
    until: float
    group: str | None = None
    ranges: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    uids: frozenset[str] = frozenset()

    def covers(self, partition: int, offset: int) -> bool:
        """Return whether an offset is in one of its ranges."""
        first, last = self.ranges.get(partition, (1, 0))
        return first <= offset <= last


@dataclass(frozen=True)
class ToldState:
    """State of a cancelled call, as a caller was told: by ``cancel()``, or by the call's result.

    Attributes:
        at: the time when it was told.
        state: ``cancelled`` if nothing of the call runs any more, as a cancel tells of a message that is in no client's
            hands; otherwise that of :attr:`AsyncResult.status`.
    """

    uid: str
    topic: str
    at: float
    state: str


@dataclass
class History:
    """Recorded history; ``sent`` is keyed by topic and uid, ``latest`` is the time of the last event."""

    sent: dict[tuple[str, str], Sent] = field(default_factory=dict)
    runs: list[HandlerRun] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    latest: float = -math.inf
    answers: list[ToldState] = field(default_factory=list)


def note_fault(log: Log, fault: Fault) -> None:
    """Record a fault that is over."""
    log.note("fault", name=fault.name, began=fault.at, until=fault.until, pid=fault.pid)


def note_operation(log: Log, operation: Operation) -> None:
    """Record an operation that has taken effect."""
    ranges = [[partition, first, last] for partition, (first, last) in operation.ranges.items()]
    log.note(
        "operation",
        deed=operation.deed.value,
        topic=operation.topic,
        began=operation.at,
        until=operation.until,
        group=operation.group,
        ranges=ranges,
        uids=sorted(operation.uids),
    )


def note_answer(log: Log, answer: ToldState) -> None:
    """Record what a caller was told of a cancelled call."""
    log.note("answer", uid=answer.uid, topic=answer.topic, told=answer.at, state=answer.state)


def _operation(event: dict[str, Any]) -> Operation:
    ranges = {partition: (first, last) for partition, first, last in event["ranges"]}
    place = event["topic"], event["began"], event["until"], event["group"]
    return Operation(Deed(event["deed"]), *place, ranges, frozenset(event["uids"]))


def read_history(folder: Path | str, until: float = math.inf) -> History:
    """Read the files of all processes.

    Args:
        until: leave out later events. Read a history that is still being written once to learn its latest event, and
            again up to that: then it contains no event whose cause is missing.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: a line in the middle of a file is damaged.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder; name the one that Recorder was given")
    gathering = Gathering()
    for path in sorted(folder.glob("*.jsonl")):
        for event in _events(path):
            if event["at"] <= until:
                gathering.take(event)
    return gathering.whole()


class Gathering:
    """Builder of a history from events. A run may end in a later file of its process than it began in.

    Attributes:
        history: the history without the runs that have not ended.
        begun: the runs that have not ended, by their ids.
    """

    def __init__(self) -> None:
        self.history = History()
        self.begun: dict[str, HandlerRun] = {}

    def take(self, event: dict[str, Any]) -> None:
        """Add an event; the events of a process must come in order."""
        history = self.history
        history.latest = max(history.latest, event["at"])
        kind = event["event"]
        if kind == "send":
            where = event["topic"], event["uid"]
            history.sent.setdefault(where, Sent(event["uid"], event["topic"], event["key"], event["at"]))
        elif kind == "sent":
            _confirm(history, event)
        elif kind == "begin":
            self.begun[event["run"]] = _begun(event)
        elif kind == "end":
            run = self.begun.pop(event["run"])
            history.runs.append(HandlerRun(**vars(run) | {"ended": event["at"], "outcome": event["outcome"]}))
        elif kind == "fault":
            history.faults.append(Fault(event["name"], event["began"], event["until"], event["pid"]))
        elif kind == "operation":
            history.operations.append(_operation(event))
        elif kind == "answer":
            history.answers.append(ToldState(event["uid"], event["topic"], event["told"], event["state"]))

    def whole(self) -> History:
        """Return the whole history, with the runs that have not ended."""
        history = self.history
        runs = [*history.runs, *self.begun.values()]
        return replace(
            history,
            sent=dict(history.sent),
            runs=runs,
            faults=list(history.faults),
            operations=list(history.operations),
            answers=list(history.answers),
        )


def _events(path: Path) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(path.read_text(encoding="ascii").split("\n")[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError:
            raise ValueError(f"{path}:{number} is no line of a history: {line[:80]!r}") from None


def _confirm(history: History, event: dict[str, Any]) -> None:
    asked = history.sent[event["topic"], event["uid"]]
    where = event["topic"], event["as_uid"]  # the uid of another message if a dedup key says that it was sent before
    first = history.sent.get(where, asked)
    confirmed = {"confirmed_at": event["at"], "partition": event["partition"], "offset": event["offset"]}
    history.sent[where] = Sent(**vars(first) | {"uid": event["as_uid"]} | confirmed)


def _begun(event: dict[str, Any]) -> HandlerRun:
    partition, offset = event["place"]
    pid, thread = event["process"]
    return HandlerRun(
        uid=event["uid"],
        topic=event["topic"],
        partition=partition,
        offset=offset,
        group=event["group"],
        pid=pid,
        thread=thread,
        began=event["at"],
        key=event["key"],
        attempt=event["attempt"],
    )
