"""What holds of tags, schedules and cancels, judged from what was seen; shares no code with the system."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from emsworker.chaos import HandlerRun

_FOREVER = float("inf")
_TICK_S = 1e-4  # between a slot and the same moment as a number


@dataclass(frozen=True)
class Change:
    """A schedule from a change on, until the next one.

    Attributes:
        every: seconds between its slots; ``None`` if it is paused or deleted.
        version: what its calls have as their argument.
        asked, confirmed: when the change was first asked for, and when it was known to be committed, by the server's
            clock: in between, it may hold or not.
    """

    every: float | None
    version: int
    asked: float
    confirmed: float


@dataclass(frozen=True)
class Firing:
    """A slot of a schedule that was fired, when, and with what argument."""

    slot: float
    fired: float
    version: int


def wrong_slots(name: str, changes: Sequence[Change], firings: Sequence[Firing]) -> Iterator[str]:
    """Find slots that were fired twice, not at all, or not as the schedule was then.

    Args:
        changes: all of a schedule, in order.
        firings: all of them.
    """
    for slot, count in Counter(one.slot for one in firings).items():
        if count > 1:
            yield f"{name}: slot {slot:.1f} was fired {count} times"
    spans = list(_spans(changes))
    for one in firings:
        if not any(_allows(*span, one) for span in spans):
            yield f"{name}: slot {one.slot:.1f} was fired at {one.fired:.3f} with {one.version}, and no state had it so"
    for began, ended, every in _stretches(changes):
        yield from _missing(name, began, ended, every, firings)


def _spans(changes: Sequence[Change]) -> Iterator[tuple[Change, float, float]]:
    """Yield each change, until when it may have held, and since when its timetable may have."""
    since, every = 0.0, None
    for change, after in zip_longest(changes, changes[1:]):
        if change.every != every:
            since, every = change.asked, change.every
        yield change, _FOREVER if after is None else after.confirmed, since


def _allows(change: Change, until: float, since: float, one: Firing) -> bool:
    """Return whether a firing lies where a change may have held, and is one of its slots."""
    if change.every is None or change.version != one.version:
        return False
    is_slot = abs(one.slot / change.every - round(one.slot / change.every)) < _TICK_S
    return is_slot and since < one.slot <= one.fired and change.asked <= one.fired <= until


def _stretches(changes: Sequence[Change]) -> Iterator[tuple[float, float, float]]:
    """Yield from when and until when a timetable has surely held, through changes of nothing else."""
    began, every = 0.0, None
    for change in changes:
        if change.every != every:
            if every is not None:
                yield began, change.asked, every
            began, every = change.confirmed, change.every
    if every is not None:
        yield began, _FOREVER, every


def _missing(name: str, began: float, ended: float, every: float, firings: Sequence[Firing]) -> Iterator[str]:
    """Find slots that were left out, though a later one of the same stretch was fired."""
    fired = {round(one.slot / every) for one in firings if began < one.slot < ended and began < one.fired}
    first, last = int(began // every) + 1, max(fired, default=0)
    for number in range(first, last):
        if number not in fired:
            yield f"{name}: slot {number * every:.1f} was not fired, though {last * every:.1f} was"


def strays(
    runs: Sequence[HandlerRun], needs: Mapping[str, frozenset[str]], tags: Mapping[int, frozenset[str]]
) -> Iterator[str]:
    """Find runs by processes whose worker lacks a tag that their group requires.

    Args:
        needs: the tags that groups require; tags: those of processes.
    """
    for run in runs:
        if missing := needs.get(run.group, frozenset()) - tags[run.pid]:
            yield f"{run.uid} was run for group {run.group} by process {run.pid}, which has no {', '.join(sorted(missing))}"


def wrong_effects(answers: Mapping[str, str], effects: Mapping[str, int]) -> Iterator[str]:
    """Find cancelled calls with an effect, and others without it.

    Args:
        answers: the final state of each call, by its id; effects: how often the effect of each is there.
    """
    wanted: dict[str, int] = defaultdict(lambda: 1, cancelled=0)
    for uid, state in answers.items():
        if effects.get(uid, 0) != wanted[state]:
            yield f"{uid} is {state}, and its effect is there {effects.get(uid, 0)} times"
