"""HTTP routes that read the stream: ``/scale`` for autoscalers, and the metrics of all groups.

One thread asks the database, over one session: however many ask, and however slowly the server answers, the probes
beside these routes have their own threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import asdict

from emsworker.admin.demand import Demands
from emsworker.core.durations import parse_duration
from emsworker.core.errors import StoreUnavailable, UnknownGroup, UnknownTopic
from emsworker.core.extras import require
from emsworker.observe.http import METRICS, Answer, HttpRequest, Route
from emsworker.observe.stream_metrics import StreamMetrics
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import check_server

TARGET_S = 30.0
_ANSWER_S = 8.0  # below the timeout of Prometheus (10 s)


class StreamRoutes:
    """Routes of one stream.

    Args:
        database: the stream.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._demands = Demands(database)
        self._asker = ThreadPoolExecutor(1, "ems-asker")

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        future = self._asker.submit(work)
        try:
            return future.result(_ANSWER_S)
        except TookTooLong:
            future.cancel()
            raise StoreUnavailable(f"the server has not answered for {_ANSWER_S:g} s") from None

    def scale(self, request: HttpRequest) -> Answer:
        """``/scale/TOPIC/GROUP?age=30s&max=20``: the demand of a group, and the number of workers wanted, as JSON."""
        if len(request.rest) != 2:
            return Answer.of_json({"error": "ask /scale/TOPIC/GROUP, perhaps with ?age=30s&max=20"}, 404)
        try:
            target_s, most = parse_duration(request.query.get("age", f"{TARGET_S:g}")), request.query.get("max")
            limit = None if most is None else int(most)
            if target_s <= 0 or (limit is not None and limit < 0):
                raise ValueError(f"age={target_s:g}, max={most}: must be positive")
        except ValueError as error:
            return Answer.of_json({"error": f"{error}; age is a duration like 30s, max a number of workers"}, 400)
        topic, group = request.rest

        def work() -> Answer:
            try:
                demand = self._demands.get(topic, group)
            except (UnknownTopic, UnknownGroup) as error:
                return Answer.of_json({"error": str(error)}, 404)
            values = asdict(demand) | {"oldest_s": round(demand.oldest_s, 3)}
            return Answer.of_json(
                {"topic": topic, "group": group, **values, "workers": demand.workers(target_s, limit)}
            )

        return self._ask(work)

    def metrics(self, _: HttpRequest) -> Answer:
        """``/metrics``: the metrics of all groups; needs the extra ``metrics``."""
        require("metrics", "/metrics")
        from prometheus_client import CollectorRegistry, generate_latest

        def work() -> Answer:
            registry = CollectorRegistry()
            registry.register(StreamMetrics(self._database))
            return Answer(200, generate_latest(registry), METRICS)

        return self._ask(work)

    def ready(self, _: HttpRequest) -> Answer:
        """``/readyz``: the database can be reached."""

        def work() -> Answer:
            self._database.call(check_server)
            return Answer.of_json({"ok": True, "reason": ""})

        return self._ask(work)


def live(_: HttpRequest) -> Answer:
    """``/livez`` of a program that has no other work than to answer."""
    return Answer.of_json({"ok": True, "reason": ""})


def stream_routes(database: Database) -> Mapping[str, Route]:
    """Return the routes of ``ems monitoring serve``."""
    routes = StreamRoutes(database)
    return {"metrics": routes.metrics, "scale": routes.scale, "livez": live, "readyz": routes.ready}
