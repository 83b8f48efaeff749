"""Prometheus metrics, as middleware: counts what a process has sent and run."""

from __future__ import annotations

import errno
import logging
import threading
from typing import TYPE_CHECKING, Any

from emsworker.core.errors import DecodeError
from emsworker.core.extras import require
from emsworker.core.model import TASK_HEADER, Message, Outcome, Receipt
from emsworker.tasks.middleware import Middleware

if TYPE_CHECKING:
    from emsworker.publish.outgoing import Outgoing

log = logging.getLogger(__name__)

_PORTS = 64


class Metrics(Middleware):
    """Counts messages and times handlers; ``Ems(middleware=[Metrics(port=9100)])``. Needs the extra ``metrics``.

    Args:
        port: where worker processes serve their metrics: the first of them here, the next at the next free port.
            Without it nothing is served; the caller's program serves the registry by itself.
        registry: of prometheus_client, by default its own.
    """

    def __init__(self, port: int | None = None, registry: Any = None) -> None:
        require("metrics", type(self).__name__)
        import prometheus_client as prometheus

        self._registry = registry if registry is not None else prometheus.REGISTRY
        self._port = port
        self._server: Any = None
        run = ("topic", "group", "task")
        self.sent = prometheus.Counter("ems_sent", "Messages sent", ("topic",), registry=self._registry)
        self.runs = prometheus.Counter("ems_runs", "Runs by outcome", (*run, "outcome"), registry=self._registry)
        self.seconds = prometheus.Histogram("ems_run_seconds", "How long runs took", run, registry=self._registry)
        self.retries = prometheus.Counter("ems_retries", "Runs that will be repeated", run, registry=self._registry)
        self.dead = prometheus.Counter("ems_dead", "Messages that were given up", run, registry=self._registry)

    def after_publish(self, outgoing: Outgoing, receipt: Receipt) -> None:
        """Count a message that was sent, unless it was there already."""
        if receipt.created:
            self.sent.labels(receipt.topic).inc()

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Count and time a run."""
        labels = _labels(message, group)
        self.runs.labels(*labels, outcome.value).inc()
        self.seconds.labels(*labels).observe(ran_s)

    def on_retry(self, message: Message, group: str, error: BaseException, delay_s: float) -> None:
        """Count a run that will be repeated."""
        self.retries.labels(*_labels(message, group)).inc()

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Count a message that was given up."""
        self.dead.labels(*_labels(message, group)).inc()

    def on_process_start(self) -> None:
        """Serve this process's metrics.

        Raises:
            OSError: no port from the first on is free.
        """
        if self._port is None:
            return
        self._server, port = self._serve(self._port)
        log.info("metrics at port %d", port)

    def _serve(self, first: int) -> tuple[Any, int]:
        from wsgiref.simple_server import make_server

        from prometheus_client.exposition import ThreadingWSGIServer, make_wsgi_app

        for port in range(first, first + _PORTS):
            try:
                server = make_server("0.0.0.0", port, make_wsgi_app(self._registry), ThreadingWSGIServer)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                continue
            threading.Thread(target=server.serve_forever, name="ems-metrics", daemon=True).start()
            return server, port
        raise OSError(errno.EADDRINUSE, f"no free port for metrics from {first} to {first + _PORTS - 1}")

    def on_process_stop(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def _labels(message: Message, group: str) -> tuple[str, str, str]:
    try:
        task = message.headers.get(TASK_HEADER, "")
    except DecodeError:  # that failure is counted, too, without a task
        task = ""
    return message.topic, group, task
