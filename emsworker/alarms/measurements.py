"""The values that alarm rules measure, of each group or of the whole stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from emsworker.alarms.machine import Attempts
from emsworker.extending.database import Session, Statements, check_extension
from emsworker.extending.declaration import load
from emsworker.extending.errors import SchemaMissing
from emsworker.extending.stream import count_refused
from emsworker.extending.values import STREAM, ExtensionMetric, Metric, Rule

_SQL = Statements(__name__)

Values = dict[tuple[str, str], float | Attempts]


@dataclass
class _Group:
    """Measurements of a group at one moment."""

    topic: str
    name: str
    id: int
    idle: bool
    position: int = 0
    unclaimed: int = 0
    claimed: int = 0
    working: int = 0
    stuck_s: float = 0.0
    age_s: float = 0.0


def measure(
    session: Session, rules: Sequence[Rule], now: datetime, since: datetime | None = None, *, locked_s: float = 0.0
) -> dict[str, Values]:
    """Return each rule's value for each group that it covers, or for the stream; read only what the rules need.

    A rule is left out if the extension that measures it, or its tables, are not here.

    Args:
        now: the server's time.
        since: the time of the previous measurement, from which on attempts are counted; ``None`` for the first.
        locked_s: the seconds for which a lock has held up others, as the beat has seen it.
    """
    groups = _read_groups(session, any(rule.metric is Metric.OLDEST for rule in rules))
    found = _measure_by_extensions(session, [rule for rule in rules if isinstance(rule.metric, ExtensionMetric)])
    for rule in rules:
        if isinstance(rule.metric, ExtensionMetric):
            continue
        if rule.metric is Metric.LOCKED:
            found[rule.name] = {STREAM: locked_s}
            continue
        if rule.metric.of_stream:
            full = rule.metric is Metric.DISK_FULL
            value = session.full_s if full else float(count_refused(session, int(rule.above) + 1))
            found[rule.name] = {STREAM: value}
            continue
        covered = [group for group in groups if rule.covers(group.topic, group.name)]
        values = {(group.topic, group.name): _value(session, rule, group, now, since or now) for group in covered}
        found[rule.name] = values
    return found


def _measure_by_extensions(session: Session, rules: Sequence[Rule]) -> dict[str, Values]:
    found: dict[str, Values] = {}
    for metric in {rule.metric.value: rule.metric for rule in rules}.values():
        assert isinstance(metric, ExtensionMetric)
        if metric.extension is None or metric.measure is None:
            continue
        try:
            check_extension(session, metric.extension)
        except SchemaMissing:
            continue
        found |= load(metric.measure.target)(session, [rule for rule in rules if rule.metric == metric])
    return found


def _value(session: Session, rule: Rule, group: _Group, now: datetime, since: datetime) -> float | Attempts:
    limit = {"group_id": group.id, "limit": int(rule.above) + 1, "within_s": rule.within_s}
    match rule.metric:
        case Metric.LAG:
            return group.unclaimed + group.claimed
        case Metric.OLDEST:
            return group.age_s
        case Metric.STUCK:
            return group.stuck_s
        case Metric.NO_CONSUMER:
            return 0 if group.idle or group.working else group.unclaimed + group.claimed
        case Metric.RETRIES:
            return float(session.rows(_SQL.count_retries, limit)[0][0])
        case Metric.DEAD:
            return float(session.rows(_SQL.count_dead, limit)[0][0])
        case Metric.ERROR_RATE:
            span = {"group_id": group.id, "since": since.replace(tzinfo=None), "until": now.replace(tzinfo=None)}
            failed, retried = session.rows(_SQL.count_attempts, span)[0]
            return Attempts(now.timestamp(), group.position, int(failed), int(retried))
        case _:
            raise AssertionError("it is no group's")


def _read_groups(session: Session, with_ages: bool) -> list[_Group]:
    packet = session.packet()
    packet.add(_SQL.list_backlogs)
    packet.add(_SQL.list_claims)
    backlogs, claims = (result.rows for result in packet.send())
    claims_by = {(row[0], row[1]): row[2:] for row in claims}
    groups: dict[int, _Group] = {}
    oldest: list[tuple[_Group, dict[str, int]]] = []
    for topic, name, group_id, topic_id, idle, partition, cursor, last, retry in backlogs:
        group = groups.setdefault(group_id, _Group(topic, name, group_id, bool(idle)))
        claimed, first_claimed, working, stuck_s = claims_by.get((group_id, partition), (0, None, 0, 0))
        unclaimed = max(0, int(last) - int(cursor) + 1)
        group.position += int(cursor)
        group.unclaimed += unclaimed
        group.claimed += int(claimed)
        group.working += int(working)
        group.stuck_s = max(group.stuck_s, float(stuck_s))
        unfinished = [cursor if unclaimed else None, first_claimed if claimed else None, retry]
        lowest = min((int(offset) for offset in unfinished if offset is not None), default=None)
        if lowest is not None:
            oldest.append((group, {"topic_id": topic_id, "partition": partition, "offset": lowest}))
    if with_ages and oldest:
        packet = session.packet()
        for _, place in oldest:
            packet.add(_SQL.get_age, place)
        for (group, _), result in zip(oldest, packet.send(), strict=True):
            group.age_s = max(group.age_s, float(result.rows[0][0]) if result.rows else 0.0)
    return list(groups.values())
