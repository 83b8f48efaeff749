"""OpenTelemetry: the spans and metrics of sends and runs, as an exporter gets them."""

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, get_value
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from emsworker import Ems, EncodeError, Message
from emsworker.core.process import runnable
from emsworker.core.process.runnable import Runnable
from emsworker.integrations.opentelemetry import OpenTelemetry


class Traced:
    """An app in memory, and what it exports."""

    def __init__(self, **options: Any) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        meters = MeterProvider(metric_readers=[self._reader])
        self.middleware = OpenTelemetry(tracer_provider=self.tracers, meter_provider=meters, **options)
        self.app = Ems("shop", middleware=[self.middleware])

    def spans(self, operation: str) -> list[ReadableSpan]:
        """The ended spans of an operation, by their start."""
        spans = [span for span in self._exporter.get_finished_spans() if span.name.startswith(operation)]
        return sorted(spans, key=lambda span: span.start_time or 0)

    def metrics(self) -> dict[str, list[tuple[float, dict[str, Any]]]]:
        """Count, or sum of a counter, and attributes of each series, by the name of the metric."""
        data: Any = self._reader.get_metrics_data()
        return {
            metric.name: [
                (getattr(point, "count", None) or getattr(point, "value", 0), dict(point.attributes))
                for point in metric.data.data_points
            ]
            for metric in data.resource_metrics[0].scope_metrics[0].metrics
        }


@pytest.fixture
def traced() -> Iterator[Traced]:
    yield Traced()
    runnable.at_start.clear()


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


SEND = {
    "messaging.system": "ems",
    "messaging.operation.name": "send",
    "messaging.operation.type": "send",
    "messaging.destination.name": "default",
}
PROCESS = {
    "messaging.system": "ems",
    "messaging.operation.name": "process",
    "messaging.operation.type": "process",
    "messaging.destination.name": "default",
    "messaging.consumer.group.name": "workers",
    "messaging.destination.partition.id": "0",
    "messaging.client.id": "test",
    "ems.task": "charge",
}


def test_the_spans_and_metrics_of_a_task_that_fails_once(traced: Traced) -> None:
    seen: list[Any] = []

    @traced.app.task(name="charge", bind=True)
    def charge(self: Any) -> None:
        seen.append((trace.get_current_span(), baggage.get_baggage("tenant"), get_value(_SUPPRESS_INSTRUMENTATION_KEY)))
        if self.request.attempt == 1:
            raise ConnectionError("mysql://shop:secret@bank is away")
        traced.app.send("mails", 1)

    traced.app.subscribe("mails", "clerks")(lambda message: None)
    token = context.attach(baggage.set_baggage("tenant", "seven"))
    with traced.app.test() as test:
        receipt = charge.delay()
        context.detach(token)
        test.run()
    send, mail = traced.spans("send")
    first, second = traced.spans("process default")
    (last,) = traced.spans("process mails")
    assert (send.name, send.kind, send.parent) == ("send default", SpanKind.PRODUCER, None)
    own = {"messaging.message.id": receipt.id, "ems.offset": 1}
    assert dict(send.attributes or {}) == SEND | own | {
        "messaging.destination.partition.id": "0",
        "ems.committed": True,
    }
    assert (first.name, first.kind, first.parent) == ("process default", SpanKind.CONSUMER, None)
    assert dict(first.attributes or {}) == PROCESS | own | {
        "ems.attempt": 1,
        "ems.outcome": "retry",
        "error.type": "ConnectionError",
    }
    assert dict(second.attributes or {}) == PROCESS | own | {"ems.attempt": 2, "ems.outcome": "done"}
    assert first.status.status_code is StatusCode.ERROR and second.status.status_code is StatusCode.UNSET
    assert "secret" not in first.to_json() and "is away" in first.to_json() and "test_otel.py" in first.to_json()
    assert links_of(first) == links_of(second) == [id_of(send)], "each attempt is a trace that is linked to the send"
    assert len({span.context.trace_id for span in (send, first, second) if span.context}) == 3
    assert mail.parent is not None and mail.parent.span_id == id_of(second), "what a handler sends is below its run"
    assert links_of(last) == [id_of(mail)] and "ems.task" not in (last.attributes or {})
    assert [id_of(one) for one, _, _ in seen] == [id_of(first), id_of(second)], "the span is the current one"
    assert [one[1:] for one in seen] == [("seven", None)] * 2

    metrics = traced.metrics()
    assert metrics["messaging.client.sent.messages"][0] == (1, SEND)
    assert metrics["messaging.client.operation.duration"][0] == (1, SEND)
    group = {key: PROCESS[key] for key in PROCESS if key in SEND or key.endswith("group.name")}
    assert metrics["messaging.client.consumed.messages"][0] == (2, group)
    assert metrics["ems.message.wait"][0] == (1, group), "of the first attempt only"
    runs = [attributes for _, attributes in metrics["messaging.process.duration"]]
    assert group | {"ems.task": "charge", "ems.outcome": "done"} in runs
    assert group | {"ems.task": "charge", "ems.outcome": "retry", "error.type": "ConnectionError"} in runs


def test_a_batch_has_one_span_with_links_and_its_messages_have_theirs_when_it_fails(traced: Traced) -> None:
    @traced.app.subscribe("orders", "billing", batch=400, on_error="dead")
    def bill(messages: Sequence[Message]) -> None:
        if messages[0].body == "bad":
            raise ValueError("bad")

    with traced.app.test() as test:
        traced.app.send_many("orders", [1, 2])
        for n in range(200):
            traced.app.send("orders", n)
        test.run()
        traced.app.send_many("orders", ["bad", "bad"])
        test.run()
    many, *single = traced.spans("send")
    assert many.kind is SpanKind.CLIENT and (many.attributes or {})["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in (many.attributes or {})
    batch, failed, *alone = traced.spans("process")
    assert (batch.attributes or {})["messaging.batch.message_count"] == 202
    assert links_of(batch) == [id_of(many), *(id_of(one) for one in single[:127])], "without duplicates, 128 at most"
    assert (failed.attributes or {})["ems.outcome"] == "given_back" and failed.status.status_code is StatusCode.ERROR
    assert [(one.attributes or {})["ems.outcome"] for one in alone] == ["dead", "dead"]
    assert traced.metrics()["ems.dead"][0][0] == 2


def test_a_run_can_be_a_child_of_its_send_and_a_failed_send_is_an_error() -> None:
    traced = Traced(parent=True)
    runnable.at_start.clear()

    @traced.app.subscribe("orders", "billing", order="key")
    async def bill(message: Message) -> None:
        pass

    with traced.app.test() as test:
        traced.app.send("orders", 1, key="a")
        test.run()
        with pytest.raises(EncodeError):
            traced.app.send("orders", object())
        with traced.app.transaction() as tx:
            tx.send("orders", 1)
    send, failed, own = traced.spans("send")
    (run,) = traced.spans("process")
    assert run.parent is not None and run.parent.span_id == id_of(send) and not run.links
    assert failed.status.status_code is StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "emsworker.core.errors.EncodeError"
    assert (own.attributes or {})["ems.committed"] is False, "its commit is the caller's"


def test_our_threads_are_quiet_and_the_end_of_a_process_ends_what_runs(traced: Traced) -> None:
    quiet: list[object] = []

    class Looks(Runnable):
        def step(self) -> None:
            quiet.append(get_value(_SUPPRESS_INSTRUMENTATION_KEY))
            self.stop()

    thread = Looks("looks", lambda name, error: None)
    thread.start()
    thread.join(60)
    assert quiet == [True] and get_value(_SUPPRESS_INSTRUMENTATION_KEY) is None

    began, goes_on = threading.Event(), threading.Event()

    @traced.app.subscribe("orders", "billing")
    def bill(message: Message) -> None:
        began.set()
        goes_on.wait(60)

    def run() -> None:
        with traced.app.test() as test:
            traced.app.send("orders", 1)
            test.run()

    runner = threading.Thread(target=run)
    runner.start()
    assert began.wait(60)
    traced.middleware.on_process_stop()
    (span,) = traced.spans("process")
    assert (span.attributes or {})["ems.outcome"] == "given_back"
    goes_on.set()
    runner.join(60)
    assert len(traced.spans("process")) == 1, "it is ended once"
