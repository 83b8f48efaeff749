"""Overview of the stream, and its topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from emsworker.extending.administration import GroupLag, GroupStatus
from emsworker.extending.errors import ConfigError, EmsError, Problem
from emsworker.extending.settings import settings_of
from emsworker.extending.stream import SamplePoint
from emsworker.web.charts import Line, LineChart, draw
from emsworker.web.page import Shared, View, Visit

HOURS = (1, 6, 24, 72)
_LATEST_S = 120.0
MOST_LINES = 200  # groups or topics of one page


@dataclass(frozen=True)
class GroupLine:
    """Group in the overview.

    Attributes:
        in_per_s, out_per_s: its rates, ``None`` where they are not known.
        drain_s: seconds until nothing is left at these rates; ``None`` if it does not get less, or there is nothing.
        status: what it does, and the alarms that fire for it.
    """

    lag: GroupLag
    in_per_s: float | None
    out_per_s: float | None
    drain_s: float | None
    status: GroupStatus

    @property
    def state(self) -> str:
        return self.status.state.value


def lines_of(shared: Shared, lags: Sequence[GroupLag]) -> list[GroupLine]:
    """Return groups of a stream with their rates."""
    rates, states = shared.rates(lags), shared.states(lags)
    return [_line(one, rates.get((one.topic.name, one.group.name)), states[one.group.id]) for one in lags]


def latest(visit: Visit) -> SamplePoint | None:
    """Return the newest sample of the stream, if it is fresh."""
    points = visit.shared.series(None, None, 1)
    if not points or (visit.now - points[-1].at).total_seconds() > _LATEST_S:
        return None
    return points[-1]


def _line(lag: GroupLag, sample: SamplePoint | None, status: GroupStatus) -> GroupLine:
    in_per_s, out_per_s = (sample.in_per_s, sample.out_per_s) if sample else (None, None)
    gain = (out_per_s or 0.0) - (in_per_s or 0.0)
    drain_s = lag.lag / gain if lag.lag and gain > 0.01 and not lag.group.paused else None
    return GroupLine(lag, in_per_s, out_per_s, drain_s, status)


def hours_of(visit: Visit) -> int:
    """Return the hours that the charts show.

    Raises:
        ConfigError: not one of those that are offered.
    """
    given = visit.asked("hours") or str(HOURS[0])
    for hours in HOURS:
        if given == str(hours):
            return hours
    raise ConfigError([Problem("hours", repr(given), f"must be one of {', '.join(map(str, HOURS))}")])


def charts_of(points: Sequence[SamplePoint]) -> list[LineChart]:
    """Return the charts of a series: what waits, the rates, the age of the oldest message."""
    times = [point.at for point in points]
    drawn = (
        draw("Unfinished messages", times, [Line("lag", "a", [float(one.lag) for one in points])]),
        draw("Messages/s", times, [
            Line("in", "b", [one.in_per_s for one in points]), Line("out", "a", [one.out_per_s for one in points]),
        ]),
        draw("Age of the oldest", times, [
            Line("oldest", "c", [None if one.oldest_s is None else float(one.oldest_s) for one in points])
        ], seconds=True),
    )  # fmt: skip
    return [chart for chart in drawn if chart is not None]


def overview(visit: Visit) -> Response:
    """Show the state of the stream: totals, charts, and every group."""
    hours = hours_of(visit)
    standing, clients, leaders = visit.shared.standing(MOST_LINES), visit.shared.clients(), visit.shared.leaders()
    alarms = [alarm for watched in visit.shared.alarms() for alarm in watched.firing]
    points = visit.shared.series(None, None, hours)
    return visit.render(
        "overview.html",
        lines=lines_of(visit.shared, standing.groups),
        count=standing.count,
        total=standing.total,
        age_s=standing.age_s,
        sample=latest(visit),
        workers=len({view.row.process_id for view in clients if view.row.alive}),
        threads=sum(view.row.alive for view in clients),
        beating=any(leader.alive for leader in leaders),
        alarms=alarms,
        charts=charts_of(points),
        hours=hours,
        all_hours=HOURS,
    )


def topics(visit: Visit) -> Response:
    """List the topics with their sizes."""
    wanted = visit.asked("q") or ""
    standing = visit.shared.topic_standing(MOST_LINES, wanted)
    return visit.render(
        "topics.html",
        sizes=standing.topics,
        count=standing.count,
        counts=standing.groups,
        age_s=standing.age_s,
        wanted=wanted,
    )


def topic(visit: Visit) -> Response:
    """Show a topic with its settings, its groups and its charts."""
    name, hours = visit.place("topic"), hours_of(visit)
    found = visit.shared.admin.topic(name)
    lags, size = visit.shared.lags(name), visit.shared.size(name)
    try:
        charts = charts_of(visit.shared.series(name, None, hours))
    except EmsError:  # deleted meanwhile
        charts = []
    return visit.render(
        "topic.html",
        topic=found,
        size=size,
        settings=[(key, getattr(found, key), one.help) for key, one in settings_of(type(found)).items()],
        lines=lines_of(visit.shared, lags),
        readers=visit.shared.holds(name),
        positions=visit.shared.positions(name),
        most=MOST_LINES,
        charts=charts,
        hours=hours,
        all_hours=HOURS,
    )


PAGES = (View("/", overview), View("/topics", topics), View("/topics/{topic}", topic))
