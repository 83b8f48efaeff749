"""An app that traces its runs and sends everything out at the end of a process only."""

import time

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from emsworker import Ems, Message, Middleware
from emsworker.integrations.opentelemetry import OpenTelemetry
from tests.process.record import note

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())]))


class Ends(Middleware):
    """Notes that its process ends."""

    def on_process_stop(self) -> None:
        note("stop")


app = Ems("traced", middleware=[Ends(), OpenTelemetry()])


@app.subscribe("jobs", "a")
def job(message: Message) -> None:
    n = message.body["n"]
    note("start", n=n, id=message.id)
    if message.body.get("fails") and message.attempt == 1:
        raise ValueError("the first attempt fails")
    time.sleep(message.body.get("s", 0))
    note("end", n=n)


@app.subscribe("hangs", "a", timeout_s=0.5, max_attempts=1)
def hang(message: Message) -> None:
    note("start", n=message.body["n"], id=message.id)
    time.sleep(600)
