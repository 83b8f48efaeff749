"""Spans and metrics of a worker arrive, whichever way its processes end."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.process.stream import Stream
from tests.support.waiting import until


class Collector:
    """What a receiver of OTLP over HTTP was sent.

    Attributes:
        runs: the outcomes of runs, by the id of the message.
        counts: of two metrics, by name.
    """

    def __init__(self) -> None:
        self.runs: dict[str, list[str]] = {}
        self.counts = dict.fromkeys(("messaging.client.consumed.messages", "ems.dead"), 0)
        self.url = ""

    def take(self, path: str, body: bytes) -> None:
        if path.endswith("/traces"):
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                for span in (span for scope in resource.scope_spans for span in scope.spans):
                    found = {one.key: one.value.string_value for one in span.attributes}
                    self.runs.setdefault(found["messaging.message.id"], []).append(found["ems.outcome"])
        else:
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                    if metric.name in self.counts:
                        self.counts[metric.name] += sum(point.as_int for point in metric.sum.data_points)


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a receiver of OTLP over HTTP."""
    made, lock = Collector(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with lock:
                made.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    made.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_span_is_lost_when_processes_are_recycled_replaced_or_stopped(one_stream: Stream) -> None:
    """The SDK sends nothing out by itself."""
    stream, never = one_stream, "3600000"
    with collector() as collected:
        worker = stream.worker(
            "tests.process.apps.traced:app",
            {"stop_hooks_timeout_s": 120, "stop_timeout_s": 0.5},
            threads=2,
            max_tasks_per_child=10,
            environ={
                "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url,
                "OTEL_BSP_SCHEDULE_DELAY": never,
                "OTEL_METRIC_EXPORT_INTERVAL": never,
            },
        )
        stream.send("jobs", [{"n": n, "fails": n % 5 == 0} for n in range(12)])  # one process is recycled
        stream.wait_ended(range(12), 60)
        stream.wait_settled()
        stream.send("hangs", [{"n": 12}])
        until(lambda: len(stream.record.events("stop")) == 2, 60, "the second process has been replaced")
        until(lambda: stream.rows("SELECT * FROM ems_dead"), 60, "it was given up")
        until(lambda: not stream.rows("SELECT * FROM ems_dead_notice"), 60, "the next process is told of the dead one")
        stream.send("jobs", [{"n": 13, "s": 600}])
        until(lambda: stream.record.events("start", n=13), 60, "it runs in the third")
        assert worker.stop() == 0, worker.text()
        assert "giving back what runs" in worker.text()
        started = Counter(event["id"] for event in stream.record.events("start"))
        assert len({event["pid"] for event in stream.record.events("start")}) == 3 and sum(started.values()) == 17
        assert {uid: len(outcomes) for uid, outcomes in collected.runs.items()} == started, worker.text()
        outcomes = Counter(one for outcomes in collected.runs.values() for one in outcomes)
        assert outcomes == {"done": 12, "retry": 3, "dead": 1, "given_back": 1}
        assert collected.counts == {"messaging.client.consumed.messages": 17, "ems.dead": 1}
        assert len(stream.record.events("stop")) == 3
        assert stream.rows("SELECT * FROM ems_client") == []
