"""HTTP routes of ``ems monitoring serve``: the metrics of all groups, and ``/scale`` for autoscalers."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from typing import Any, TypeVar

from emsworker.extending.administration import ANSWER_S, METRICS, Answer, HttpRequest, Route, Scaling
from emsworker.extending.database import Database, check_server
from emsworker.extending.declaration import require
from emsworker.extending.errors import StoreUnavailable
from emsworker.monitoring.metrics import ServersMetrics, StreamMetrics

log = logging.getLogger(__name__)

T = TypeVar("T")


class StreamRoutes(Scaling):
    """Routes of one stream.

    Args:
        database: the stream.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._database = database

    def metrics(self, _: HttpRequest) -> Answer:
        """``/metrics``: the metrics of all groups; needs the extra ``metrics``."""
        require("metrics", "/metrics")
        from prometheus_client import CollectorRegistry, generate_latest

        def work() -> Answer:
            registry = CollectorRegistry()
            registry.register(StreamMetrics(self._database))
            return Answer(200, generate_latest(registry), METRICS)

        return self.ask(work)

    def ready(self, _: HttpRequest) -> Answer:
        """``/readyz``: the database can be reached."""

        def work() -> Answer:
            self._database.call(check_server)
            return Answer.of_json({"ok": True, "reason": ""})

        return self.ask(work)


def live(_: HttpRequest) -> Answer:
    """``/livez`` of a program that has no other work than to answer."""
    return Answer.of_json({"ok": True, "reason": ""})


class SeveralRoutes:
    """Routes of the streams of several servers.

    Args:
        databases: the streams by server.
    """

    def __init__(self, databases: Mapping[str, Database]) -> None:
        self._each = {name: StreamRoutes(database) for name, database in databases.items()}
        self._databases = databases
        self._asker = ThreadPoolExecutor(len(databases), "ems-server")

    def scale(self, request: HttpRequest) -> Answer:
        """``/scale/TOPIC/GROUP`` of the server that has most to do for the group: while a topic moves, two have it."""
        answers = [answer for answer in self._ask_all(lambda one: one.scale(request)).values() if answer is not None]
        found = [answer for answer in answers if answer.status == 200]
        return max(found, key=lambda answer: int(json.loads(answer.body)["lag"])) if found else answers[0]

    def metrics(self, _: HttpRequest) -> Answer:
        """``/metrics``: of all servers, each with the label ``server``; those of one that is away are left out."""
        require("metrics", "/metrics")
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(ServersMetrics(self._databases, self._gather))
        return Answer(200, generate_latest(registry), METRICS)

    def ready(self, request: HttpRequest) -> Answer:
        """``/readyz``: at least one of the databases can be reached."""
        answers = self._ask_all(lambda one: one.ready(request))
        away = [name for name, answer in answers.items() if answer is None]
        if len(away) == len(answers):
            raise StoreUnavailable(f"none of the servers can be reached: {', '.join(away)}")
        return Answer.of_json({"ok": True, "reason": f"away: {', '.join(away)}" if away else ""})

    def _ask_all(self, ask: Callable[[StreamRoutes], Answer]) -> dict[str, Answer | None]:
        futures = {name: self._asker.submit(ask, one) for name, one in self._each.items()}
        return {name: _or_none(future) for name, future in futures.items()}

    def _gather(self, work: Callable[[Database], list[Any]]) -> dict[str, list[Any] | None]:
        futures = {name: self._asker.submit(work, database) for name, database in self._databases.items()}
        return {name: _or_none(future) for name, future in futures.items()}


def _or_none(future: Future[T]) -> T | None:
    try:
        return future.result(ANSWER_S)
    except (StoreUnavailable, TookTooLong) as error:
        log.info("a server does not answer: %s", error)
        return None


def stream_routes(databases: Mapping[str, Database]) -> Mapping[str, Route]:
    """Return the routes of ``ems monitoring serve``.

    Args:
        databases: the streams by server.
    """
    routes = SeveralRoutes(databases) if len(databases) > 1 else StreamRoutes(next(iter(databases.values())))
    return {"metrics": routes.metrics, "scale": routes.scale, "livez": live, "readyz": routes.ready}
