"""States of groups: what each does, and the alarms that fire for it.

No table says which clients work for a group; what it has open tells. It counts as without a consumer if messages wait
for longer than any poller pauses, while nothing of it runs, waits for a permit, or was finished in the last minute. If
its tasks require tags that no live worker has, that is said instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from emsworker.admin.monitoring import GroupLag
from emsworker.core.errors import AccessDenied
from emsworker.core.model import Order
from emsworker.core.tags import named
from emsworker.store.cluster import alarms, clients
from emsworker.store.engine.session import Session
from emsworker.store.groups import handlers
from emsworker.store.inspect import samples
from emsworker.store.inspect.monitoring import held_back

_PATIENCE_S = 10.0


class GroupState(StrEnum):
    """State of a group: nothing may run; messages wait, and nobody takes them; messages run; nothing is left."""

    PAUSED = "paused"
    NO_CONSUMER = "no consumer"
    WORKING = "working"
    IDLE = "idle"


@dataclass(frozen=True)
class GroupStatus:
    """The state of a group, and the names of the alarm rules that fire for it. Its text is that of a list.

    Attributes:
        lacks: tags that it requires, and no live worker has; read only of a group without a consumer.
    """

    state: GroupState
    alarms: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.lacks:
            return f"no worker with {named(self.lacks)}{', alarm' if self.alarms else ''}"
        if not self.alarms:
            return self.state.value
        # An alarm says that what goes on is not well.
        return "alarm" if self.state in (GroupState.WORKING, GroupState.IDLE) else f"{self.state.value}, alarm"


def read_states(
    session: Session, lags: Sequence[GroupLag], rates: Mapping[int, float | None] | None = None
) -> dict[int, GroupStatus]:
    """Return the states of groups by id; the number of statements does not depend on theirs.

    Args:
        rates: messages a second that the groups have finished lately; by default the beat's samples are read.
    """
    firing: dict[tuple[str, str], list[str]] = {}
    try:
        for rule, topic, group in alarms.list_firing(session):
            firing.setdefault((topic, group), []).append(rule)
    except AccessDenied:  # of a role that reads no alarms
        firing = {}
    doubtful = {lag.group.id for lag in lags if _may_lack_consumer(lag)}
    if doubtful and clients.is_any_alive(session):
        patient = {lag.group.id for lag in lags if lag.group.id in doubtful and _waits_in_vain(lag)}
        if patient and rates is None:
            rates = {
                group_id: point.out_per_s for (_, group_id), point in samples.read_latest(session, patient).items()
            }
        doubtful = {one for one in patient if not (rates or {}).get(one)}
        doubtful -= held_back(session) if doubtful else set()
    lacks = read_lacks(session, doubtful)
    return {
        lag.group.id: GroupStatus(
            _state(lag, lag.group.id in doubtful),
            tuple(firing.get((lag.topic.name, lag.group.name), ())),
            lacks.get(lag.group.id, ()),
        )
        for lag in lags
    }


def read_lacks(session: Session, group_ids: Collection[int]) -> dict[int, tuple[str, ...]]:
    """Return the tags of groups whose tags no live worker has, by id."""
    try:
        required = handlers.list_required(session, group_ids)
    except AccessDenied:  # of a role that reads no handlers
        return {}
    present = clients.list_tags(session) if required else []
    return {group_id: tags for group_id, tags in required.items() if not any(set(tags) <= has for has in present)}


def _may_lack_consumer(lag: GroupLag) -> bool:
    return bool(lag.lag) and not lag.group.paused and lag.topic.rule.readable


def _waits_in_vain(lag: GroupLag) -> bool:
    """Return whether messages wait that a living consumer would have taken."""
    if lag.running or lag.claimed or not (lag.unclaimed or lag.waiting) or (lag.oldest_age_s or 0.0) < _PATIENCE_S:
        return False
    return not (lag.retries and lag.group.order is not Order.NONE)  # those wait for an earlier message of their key


def _state(lag: GroupLag, lacks_consumer: bool) -> GroupState:
    if lag.group.paused or (lag.lag and not lag.topic.rule.readable):
        return GroupState.PAUSED
    if lacks_consumer:
        return GroupState.NO_CONSUMER
    return GroupState.WORKING if lag.lag else GroupState.IDLE
