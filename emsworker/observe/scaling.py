"""The HTTP route ``/scale``, which tells autoscalers the number of workers that a group needs.

One thread asks the database, over one session: however many ask, and however slowly the server answers, the probes
beside this route have their own threads.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import asdict

from emsworker.admin.demand import Demands
from emsworker.core.durations import parse_duration
from emsworker.core.errors import StoreUnavailable, UnknownGroup, UnknownTopic
from emsworker.observe.http import Answer, HttpRequest
from emsworker.store import Database

TARGET_S = 30.0
ANSWER_S = 8.0  # below the timeout of Prometheus (10 s)


class Scaling:
    """The route of one stream.

    Args:
        database: the stream.
    """

    def __init__(self, database: Database) -> None:
        self._demands = Demands(database)
        self._asker = ThreadPoolExecutor(1, "ems-asker")

    def ask(self, work: Callable[[], Answer]) -> Answer:
        """Return the answer of ``work``, which asks the database.

        Raises:
            StoreUnavailable: the server does not answer in time.
        """
        future = self._asker.submit(work)
        try:
            return future.result(ANSWER_S)
        except TookTooLong:
            future.cancel()
            raise StoreUnavailable(f"the server has not answered for {ANSWER_S:g} s") from None

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

        return self.ask(work)
