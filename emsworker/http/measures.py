"""Metrics of the server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from starlette.responses import Response

from emsworker.extending.administration import METRICS
from emsworker.extending.declaration import hint_if_missing
from emsworker.http.faults import HttpFault
from emsworker.http.pulls import GroupPulls


class HttpMetrics:
    """Counts requests, and measures who waits and what is in hand; a collector of prometheus_client.

    Args:
        pulls: the groups that clients pull from.
        streams: returns the number of streams of events.
    """

    def __init__(self, pulls: GroupPulls, streams: Callable[[], int]) -> None:
        self._pulls, self._streams = pulls, streams
        self._requests: dict[tuple[str, str], int] = {}
        self._seconds: dict[str, float] = {}

    def count(self, operation: str, status: int, seconds: float) -> None:
        """Count an answer."""
        key = (operation, str(status))
        self._requests[key] = self._requests.get(key, 0) + 1
        self._seconds[operation] = self._seconds.get(operation, 0.0) + seconds

    def response(self) -> Response:
        """Return the metrics as Prometheus reads them.

        Raises:
            HttpFault: the extra ``metrics`` is not installed.
        """
        if hint := hint_if_missing("metrics"):
            raise HttpFault(501, "extra_missing", hint)
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return Response(generate_latest(registry), media_type=METRICS)

    def describe(self) -> Iterator[Any]:
        """Return nothing: that of a collector without numbers is not asked for."""
        yield from ()

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their present numbers."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        requests = CounterMetricFamily("ems_http_requests", "Answers", labels=("operation", "status"))
        for (operation, status), number in self._requests.items():
            requests.add_metric((operation, status), number)
        seconds = CounterMetricFamily(
            "ems_http_request_seconds",
            "Time until they were answered, waits included",
            labels=["operation"],
        )
        for operation, spent in self._seconds.items():
            seconds.add_metric([operation], spent)
        waiting = GaugeMetricFamily("ems_http_waiting", "Clients that wait for messages", labels=("topic", "group"))
        in_hand = GaugeMetricFamily("ems_http_in_hand", "Messages that clients have in hand", labels=("topic", "group"))
        for one in self._pulls.groups():
            waiting.add_metric((one.topic, one.group), one.waiting)
            in_hand.add_metric((one.topic, one.group), one.in_hand)
        yield from (requests, seconds, waiting, in_hand)
        yield GaugeMetricFamily("ems_http_streams", "Streams of events that are open", value=self._streams())
