"""Prometheus metrics of the stream itself: the lag of each group and reader, and refused rows, read at every scrape."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from emsworker.extending.administration import Admin, Demand, Demands, GroupLag, HoldView, Monitoring, Standings
from emsworker.extending.apps import Ems
from emsworker.extending.database import Database, ReplicaDatabase, present_extensions, replica_lag
from emsworker.extending.declaration import Extension, parts, require
from emsworker.extending.errors import AccessDenied, repr_of
from emsworker.extending.values import Group, Topic

log = logging.getLogger(__name__)

_MOST_COUNTED = 100_000  # retries and dead letters of a partition
_LABELS = ("topic", "group")


class StreamMetrics:
    """A collector: ``REGISTRY.register(StreamMetrics(app))``. Needs the extra ``metrics``.

    One program of a stream is enough: the numbers are those of all workers. Every scrape reads the lag of all groups,
    as `ems groups list` does: of a stream with very many from the latest samples of the beat.

    Args:
        stream: an app, or its database.
    """

    def __init__(self, stream: Ems | Database) -> None:
        require("metrics", type(self).__name__)
        self._database = stream.stream.database if isinstance(stream, Ems) else stream
        self._monitoring, self._demands = Monitoring(self._database), Demands(self._database)
        self._standings = Standings(self._database)
        self._readers = Admin(self._database).readers

    def describe(self) -> Iterator[Any]:
        """Return the metrics without numbers, so that registering asks no server."""
        yield from self._families([], 0.0)
        yield from _demand_families([])
        yield _refused_family([])
        yield from _reader_families([])

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their present numbers."""
        standing = self._standings.groups(most=_MOST_COUNTED)
        yield from self._families(standing.groups, standing.age_s or 0.0)
        yield from _demand_families(self._demands.list())
        yield _refused_family([self._monitoring.refused(_MOST_COUNTED)])
        yield from _reader_families(self._readers.holds())
        if isinstance(self._database, ReplicaDatabase):
            yield from self._lag_families(self._database)
        yield from _extension_families(self._database)

    def _lag_families(self, database: ReplicaDatabase) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        lag = database.call(replica_lag)
        if lag.seconds is not None:
            text = "Seconds that the replica is behind its primary, and all other numbers with it"
            yield GaugeMetricFamily("ems_replica_lag_seconds", text, value=lag.seconds)

    def _families(self, lags: Sequence[GroupLag], age_s: float) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gauges = {
            "unclaimed": "Messages that a group has not claimed",
            "claimed": "Messages that live clients hold",
            "waiting": "Messages whose client has stopped or died, and that wait for another",
            "retries": "Messages that wait for a retry",
            "dead": "Dead letters",
        }
        for name, text in gauges.items():
            family = GaugeMetricFamily(f"ems_group_{name}", text, labels=_LABELS)
            for lag in lags:
                family.add_metric((lag.topic.name, lag.group.name), getattr(lag, name))
            yield family
        oldest = GaugeMetricFamily("ems_group_oldest_seconds", "Age of the oldest unfinished message", labels=_LABELS)
        skipped = CounterMetricFamily("ems_group_skipped", "Offsets that were passed over", labels=_LABELS)
        for lag in lags:
            oldest.add_metric((lag.topic.name, lag.group.name), lag.oldest_age_s or 0.0)
            skipped.add_metric((lag.topic.name, lag.group.name), lag.skipped)
        yield oldest
        yield skipped
        text = "Age of the numbers of groups: 0 if they were read now, else that of the beat's samples"
        yield GaugeMetricFamily("ems_groups_age_seconds", text, value=age_s)


def _extension_families(database: Database) -> Iterator[Any]:
    """Yield the metrics of extensions whose tables the stream has; one that fails must not hide the others."""
    for one, metrics in _extension_metrics():
        if one not in database.call(present_extensions):
            continue
        for measure in metrics:
            try:
                yield from database.call(lambda session, measure=measure: [*measure(session)])  # type: ignore[misc]
            except AccessDenied:
                continue  # a role that has no right on its tables has no metrics of it
            except Exception as error:  # of somebody else's code
                log.warning("metrics of extension %r are left out: %s", one.name, repr_of(error))


@functools.cache
def _extension_metrics() -> Sequence[tuple[Extension, list[Any]]]:
    return tuple(parts("metrics"))


def _refused_family(counts: list[int]) -> Any:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily("ems_publish_refused", "Rows of ems_publish that are refused")
    for count in counts:
        family.add_metric((), count)
    return family


def _demand_families(found: list[tuple[Topic, Group, Demand]]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    gauges: dict[str, tuple[str, Callable[[Demand], float]]] = {
        "startable": ("Messages that a thread could start now", lambda demand: demand.waiting),
        "startable_seconds": ("For how long the oldest of those has waited", lambda demand: demand.oldest_s),
        "busy_workers": ("Workers that hold messages of the group", lambda demand: demand.busy),
    }
    for name, (text, number) in gauges.items():
        family = GaugeMetricFamily(f"ems_group_{name}", text, labels=_LABELS)
        for topic, group, demand in found:
            family.add_metric((topic.name, group.name), number(demand))
        yield family


class ServersMetrics:
    """A collector of the metrics of several servers: those of :class:`StreamMetrics` with the label ``server``.

    Args:
        servers: their names.
        gather: reads the metrics of every server at once; ``None`` for one that is away.
    """

    def __init__(
        self,
        servers: Collection[str],
        gather: Callable[[Callable[[Database], list[Any]]], Mapping[str, list[Any] | None]],
    ) -> None:
        self._servers, self._gather = servers, gather

    def describe(self) -> Iterator[Any]:
        """Return nothing: no server is asked to register it."""
        yield from ()

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their present numbers, and which servers answer."""
        from prometheus_client.core import GaugeMetricFamily, Metric

        found = self._gather(lambda database: list(StreamMetrics(database).collect()))
        up = GaugeMetricFamily("ems_server_up", "1 if the server answers", labels=["server"])
        families: dict[str, Any] = {}
        for server in self._servers:
            read = found[server]
            up.add_metric([server], 0 if read is None else 1)
            for family in read or ():
                merged = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type, family.unit)
                )
                for sample in family.samples:
                    merged.add_sample(sample.name, {**sample.labels, "server": server}, sample.value)
        yield up
        yield from families.values()


def _reader_families(found: Sequence[HoldView]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    gauges: dict[str, tuple[str, Callable[[HoldView], float]]] = {
        "avg_offsets_behind": ("Messages of a partition not read by a reader with a hold, mean", _mean_lag),
        "max_offsets_behind": ("The same of the partition with most of them", lambda one: max(one.lags)),
        "min_offsets_behind": ("The same of the partition with least of them", lambda one: min(one.lags)),
        "hold_age_seconds": ("Time since the reader renewed its hold", lambda one: one.age_s),
        "hold_left_seconds": ("Time until the hold is lost unless it is renewed", lambda one: one.left_s),
        "hold_lost": ("1 if the hold is lost and retention goes on without the reader", lambda one: one.lost),
    }
    for name, (text, number) in gauges.items():
        family = GaugeMetricFamily(f"ems_reader_{name}", text, labels=("topic", "reader"))
        for view in found:
            family.add_metric((view.topic, view.name), number(view))
        yield family


def _mean_lag(view: HoldView) -> float:
    return sum(view.lags) / len(view.lags)
