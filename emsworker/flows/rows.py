"""The rows of a flow, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from emsworker.extending.errors import EncodeError, Reject
from emsworker.extending.values import Decoder, encode_json
from emsworker.flows.errors import FlowExists, TooManySignals

READY, RUNNING, WAITING = "ready", "running", "waiting"
DONE, FAILED, CANCELLED = "done", "failed", "cancelled"
ENDED = (DONE, FAILED, CANCELLED)
STEP, TRANSACTION, CALL, GATHER, SLEEP, WAIT, UNDO, UNDONE, EMIT, PATCH = (
    "step",
    "transaction",
    "call",
    "gather",
    "sleep",
    "wait",
    "undo",
    "undone",
    "emit",
    "patch",
)
MAX_VALUE_BYTES = 1 << 20
MOST_SIGNALS, MOST_SIGNAL_BYTES = 1000, 16 << 20
"""Of the signals of a flow that it has not taken; all their names and small values are loaded with each run."""
LONGEST_NAME = 190
_LONGEST_BURST = 10
_JSON = Decoder(("json",))


def encode_value(value: Any, what: str) -> bytes:
    """Write a value of a flow as JSON.

    Raises:
        EncodeError: it has no JSON form, or is over a MiB.
    """
    try:
        encoded = encode_json(value)
    except EncodeError as error:
        raise EncodeError(f"{what} cannot be kept: {error}") from error
    if len(encoded) > MAX_VALUE_BYTES:
        raise EncodeError(
            f"{what} of {len(encoded)} bytes is over the limit of {MAX_VALUE_BYTES}; keep a reference to the data"
        )
    return encoded


def decode_value(encoded: bytes | None) -> Any:
    """Read a value of a flow."""
    return None if encoded is None else _JSON.decode(encoded, {})


@dataclass(frozen=True, slots=True)
class StoredError:
    """An error as it is stored.

    Attributes:
        kind: the name of its class.
    """

    kind: str
    text: str


@dataclass(slots=True)
class StepRow:
    """A step.

    Attributes:
        number: steps of a flow are numbered in the order in which they began.
        total, pending: of calls: how many there are, and how many of them have not ended.
        value: of a step that has ended well, as JSON.
        failure: of a step after whose error the flow went on.
        due_at: until when it waits, of a sleep or of a signal with a timeout.
        topics: numbers of the topics to which its calls were sent, with commas between.
        took_s: seconds that a new step has run.
        branch: path of the branch that has asked for it; see :mod:`emsworker.flows.branches`.
    """

    number: int
    kind: str
    name: str
    total: int = 0
    pending: int = 0
    value: bytes | None = None
    failure: StoredError | None = None
    due_at: datetime | None = None
    began_at: datetime | None = None
    ended_at: datetime | None = None
    is_ended: bool = True
    topics: str | None = None
    took_s: float = 0.0
    branch: str = ""


def undo_name(noted: StepRow) -> str:
    """Return the name of the call that undoes what was noted."""
    return f"undo {noted.number}: {noted.name}"[:190]


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The end of one call of a step."""

    number: int
    value: bytes | None
    failure: StoredError | None


@dataclass(frozen=True, slots=True)
class SignalRow:
    """A signal that no step has taken yet; ``value`` is ``None`` if it is too large to be loaded with the flow."""

    id: int
    name: str
    value: bytes | None


def check_room(flow: str, name: str, size: int, count: int, total: int) -> None:
    """Check that a flow can be given one more signal.

    Args:
        flow: its id.
        name, size: of the signal.
        count, total: number and bytes of those that it has not taken.

    Raises:
        TooManySignals: there is no room for it.
    """
    if count >= MOST_SIGNALS or total + size > MOST_SIGNAL_BYTES:
        raise TooManySignals(
            f"signal {name!r} of {size} bytes was not given to flow {flow!r}, which has not taken {count} signals of "
            f"{total} bytes; at most {MOST_SIGNALS} wait, with {MOST_SIGNAL_BYTES} bytes: let the flow take them first"
        )


@dataclass(slots=True)
class FlowRow:
    """A flow.

    Attributes:
        id: number of its row.
        key: its id, as users see it.
        run: number of its present run; the fence of everything that a run writes.
        owner: uid of the message that runs it, or is to wake it.
        waits: for what it waits.
        failure: with which it has failed, or will have when its steps are undone.
        parent: of a flow that another one has called: ``FLOW.STEP.NUMBER``.
        next_step: the least number that no step has had.
        begins_at: before which it does not begin, of a burst of starts that may not be over.
        undone: its steps were undone, so it cannot be run again.
        has_events: its changes are messages of a topic.
    """

    id: int
    key: str
    name: str
    version: int
    topic: str
    state: str
    run: int
    owner: bytes
    args: bytes
    waits: str | None = None
    value: bytes | None = None
    failure: StoredError | None = None
    parent: str | None = None
    next_step: int = 1
    started_at: datetime | None = None
    changed_at: datetime | None = None
    deadline_at: datetime | None = None
    ended_at: datetime | None = None
    begins_at: datetime | None = None
    undone: bool = False
    has_events: bool = False

    @property
    def burst(self) -> str:
        """The id with which the starts of a burst have named it."""
        return self.key.rpartition("/")[0]

    def rejection(self) -> Reject:
        """Return the error with which the message of a flow that has failed becomes a dead letter."""
        why = "" if self.failure is None else f": {self.failure.kind}: {self.failure.text}"
        hint = "its steps were undone, so it is over" if self.undone else "`ems flows retry` runs it again"
        return Reject(f"flow {self.key!r} has failed{why}; {hint}")


@dataclass(frozen=True)
class NewFlow:
    """A flow that is to be started.

    Attributes:
        headers: of the messages that wake it.
        timeout_s: after which it has failed.
        attributes: to find it by.
        level: of the priority of its messages.
        burst: the id of a burst of starts, of which the last one starts a flow.
        debounce_s: for which there must be no other start.
    """

    key: str
    name: str
    version: int
    topic: str
    headers: bytes
    args: bytes
    timeout_s: float | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    parent: str | None = None
    burst: str | None = None
    debounce_s: float | None = None
    level: int = 0

    @property
    def longest_s(self) -> float:
        """The seconds after its first start in which the flow of a burst begins, however many come."""
        return _LONGEST_BURST * (self.debounce_s or 0.0)

    def check_same(self, name: str, args: bytes) -> None:
        """Check that a flow that has this id already is the same one.

        Raises:
            FlowExists: it is another one.
        """
        if name != self.name:
            raise FlowExists(
                f"flow {self.key!r} exists, and is one of {name}, not of {self.name}; give this one another id"
            )
        if args != self.args:
            known = args[:200].decode(errors="backslashreplace")
            raise FlowExists(f"flow {self.key!r} exists, with other arguments: {known}; give this one another id")


@dataclass(slots=True)
class RunChange:
    """One transaction of a run, behind its fence.

    Attributes:
        added: steps that have begun, and perhaps ended.
        ended: steps that were recorded before and have ended now.
        taken: signals, each with the step that has taken it.
        emitted: values, each with its number.
        state: of the flow from now on; ``None`` if the run goes on.
        waits: for what it waits.
        wake_at: when a message is to run it, whatever becomes of what it waits for.
        unless: steps and signals; if one of these steps has no call pending, or one of these signals is there, the flow
            does not wait, and nothing is written.
        since: when the run began; the flow does not wait either if a time for which it waits has come since.
        undone: the flow has ended, and its steps were undone.
    """

    added: list[StepRow] = field(default_factory=list)
    ended: list[StepRow] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)
    emitted: list[tuple[int, bytes]] = field(default_factory=list)
    state: str | None = None
    waits: str | None = None
    wake_at: datetime | None = None
    value: bytes | None = None
    failure: StoredError | None = None
    unless: tuple[Sequence[int], Sequence[str]] = ((), ())
    since: datetime | None = None
    undone: bool = False


@dataclass(slots=True)
class Loaded:
    """A flow as a run begins with it.

    Attributes:
        now: the server's time.
        call_ends: the ends of single calls by the number of their step, but for large ones.
    """

    flow: FlowRow
    steps: list[StepRow]
    signals: list[SignalRow]
    now: datetime
    call_ends: dict[int, CallEnd] = field(default_factory=dict)


def next_number(steps: Sequence[StepRow]) -> int:
    """Return the least number that no step of a flow has had."""
    return 1 + max((one.number for one in steps), default=0)


def first_forgotten(steps: Sequence[StepRow], state: str, failed: int | None, wanted: int | None) -> int | None:
    """Return the first step that is forgotten when a flow is run again; ``None`` if it cannot be.

    Args:
        state: in which it has ended; the calls of a cancelled one were cancelled with it.
        failed: the last step of which a call has failed.
        wanted: the first step that is to be forgotten, if anybody has said so.
    """
    last = next_number(steps) - 1
    if any(one.kind == UNDONE for one in steps):  # what was undone is not done again; the undoing can go on
        return last if wanted is None and failed == last else None
    if wanted is not None:
        return wanted
    if state == CANCELLED:
        return min((one.number for one in steps if one.pending), default=last + 1)
    return last if failed is not None and failed == last else last + 1
