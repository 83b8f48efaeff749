"""Rules of alerts: the transition of a group's state at each look, and the events it causes, without I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

CONSUME_TIMEOUT, LAG, ERROR_RATE = "consume_timeout", "lag", "error_rate"
FIRING, RESOLVED = "firing", "resolved"
_POINTS = 100  # of the history of one group
_SPACE = uuid.UUID("6f1d6c0e-95f3-4c1b-9d59-2f3c7d1ad0c4")


@dataclass(frozen=True)
class GroupSample:
    """A sample of a group.

    Attributes:
        at: microseconds since 1970, by the server's clock.
        lag: messages that are not finished.
        oldest_s: the age of the oldest of them.
        position: the sum of its cursors.
        failed: attempts that failed since the previous look.
        retried: attempts since then that were not a message's first.
    """

    at: int
    lag: int
    oldest_s: float | None
    position: int
    failed: int
    retried: int


@dataclass(frozen=True)
class AlertLimits:
    """The rules: a value above the limit is a breach; a rule without a limit is off.

    Attributes:
        rules: name -> limit.
        for_s: seconds that a breach lasts before its alert fires.
        within_s: the span of the error rate, in seconds.
        least: the fewest attempts in that span that make an error rate.
    """

    rules: Mapping[str, float]
    for_s: float = 0.0
    within_s: float = 300.0
    least: int = 10


@dataclass
class State:
    """The state kept for a group.

    Attributes:
        breaches: rule -> start of the breach (microseconds since 1970), and whether its alert fired.
        points: looks of the last ``within_s``: at, position, failed, retried.
    """

    breaches: dict[str, tuple[int, bool]] = field(default_factory=dict)
    points: list[tuple[int, int, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Event:
    """The start or end of an alert.

    Attributes:
        id: deterministic; the id that both events of the alert share is ``alert``.
        value: the measured value, ``None`` if the group is gone.
        since: the start of the breach, microseconds since 1970.
    """

    id: str
    alert: str
    state: str
    rule: str
    topic: str
    group: str
    value: float | None
    limit: float | None
    since: int
    at: int
    reason: str


def step(key: tuple[str, str], state: State, look: GroupSample, limits: AlertLimits) -> Iterator[Event]:
    """Apply a look to the state, and yield the events.

    Each uninterrupted breach of a rule is one alert: it fires once when the breach has lasted for ``for_s``, and is
    resolved once when the breach is over.
    """
    _remember(state, look, limits)
    values = {CONSUME_TIMEOUT: look.oldest_s or 0.0, LAG: float(look.lag), ERROR_RATE: _error_rate(state, limits)}
    for rule in sorted({*limits.rules, *state.breaches}):
        limit = limits.rules.get(rule)
        value = values[rule]
        if limit is not None and value > limit:
            since, told = state.breaches.get(rule, (look.at, False))
            if not told and look.at - since >= limits.for_s * 1_000_000:
                told = True
                yield _event(key, FIRING, rule, since, look.at, value, limit, "")
            state.breaches[rule] = (since, told)
        elif rule in state.breaches:
            since, told = state.breaches.pop(rule)
            if told:
                reason = "" if limit is not None else "the rule is no longer asked for"
                yield _event(key, RESOLVED, rule, since, look.at, value, limit, reason)


def end(key: tuple[str, str], state: State, at: int) -> Iterator[Event]:
    """Resolve all firing alerts of a group that is gone."""
    for rule, (since, told) in sorted(state.breaches.items()):
        if told:
            yield _event(key, RESOLVED, rule, since, at, None, None, "the group is gone")


def _remember(state: State, look: GroupSample, limits: AlertLimits) -> None:
    """Add a look to the history; points close to each other are merged to keep it short."""
    points, within_us = state.points, round(limits.within_s * 1_000_000)
    point = (look.at, look.position, look.failed, look.retried)
    if len(points) > 1 and look.at - points[-2][0] < within_us // _POINTS:
        _, _, failed, retried = points.pop()
        point = (look.at, look.position, failed + look.failed, retried + look.retried)
    points.append(point)
    while len(points) > 1 and points[1][0] <= look.at - within_us:
        points.pop(0)


def _error_rate(state: State, limits: AlertLimits) -> float:
    """Divide failed attempts by all: the messages taken since the first point, and the retries."""
    first, *later = state.points
    failed, retried = sum(point[2] for point in later), sum(point[3] for point in later)
    attempts = max(failed, state.points[-1][1] - first[1] + retried)
    return failed / attempts if attempts >= max(1, limits.least) else 0.0


def _event(
    key: tuple[str, str],
    state: str,
    rule: str,
    since: int,
    at: int,
    value: float | None,
    limit: float | None,
    reason: str,
) -> Event:
    alert = uuid.uuid5(_SPACE, "\0".join((rule, *key, str(since))))
    return Event(str(uuid.uuid5(alert, state)), str(alert), state, rule, *key, value, limit, since, at, reason)


# -- as Spark keeps it -------------------------------------------------------------------------------------------------


def as_plain(state: State) -> dict[str, Any]:
    """Convert a state for JSON."""
    return {"breaches": state.breaches, "points": state.points}


def from_plain(plain: Mapping[str, Any]) -> State:
    """Convert the result of :func:`as_plain` back to a state."""
    breaches = {rule: (int(since), bool(told)) for rule, (since, told) in plain["breaches"].items()}
    points = [(int(at), int(position), int(failed), int(retried)) for at, position, failed, retried in plain["points"]]
    return State(breaches, points)
