"""OpenTelemetry, as middleware: spans and metrics of what a process sends and runs.

It needs the API of OpenTelemetry only; where spans go is decided by the SDK that the program sets up. A run is a trace
of its own with a link to the send, because a delayed or replayed message may run days later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from emsworker.extending.administration import BoundedNames
from emsworker.extending.apps import Middleware, PublishBracket, RunBracket, RunOutcome
from emsworker.extending.consuming import describe
from emsworker.extending.declaration import require
from emsworker.extending.errors import DecodeError, Ignore, Retry, text_of
from emsworker.extending.processes import runnable, ticks
from emsworker.extending.settings import redact
from emsworker.extending.values import TASK_NAME, Message, in_utf8
from emsworker.integrations.opentelemetry import names

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import Link, Span, TracerProvider

    Attributes = dict[str, str | int | bool]

_SCOPE = "emsworker"
_MOST_LINKS = 128
_FAILURES = (RunOutcome.RETRY, RunOutcome.DEAD, RunOutcome.LOST, RunOutcome.GIVEN_BACK)


class OpenTelemetry(Middleware):
    """Traces and measures sends and runs; ``Ems(middleware=[OpenTelemetry()])``. Needs the extra ``otel``.

    Args:
        parent: make the run of a message part of the trace of its send, instead of a new trace with a link to it. A
            batch has links in any case.
        tracer_provider, meter_provider: by default the global ones, which may also be set later.
    """

    def __init__(
        self,
        *,
        parent: bool = False,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        require("otel", type(self).__name__)
        from opentelemetry import context, metrics, propagate, trace

        self._parent = parent
        self._context, self._propagate, self._trace = context, propagate, trace
        self._providers = tracer_provider, meter_provider
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracer_provider, schema_url=names.SCHEMA_URL)
        self._measure = _Instruments(
            metrics.get_meter(_SCOPE, meter_provider=meter_provider, schema_url=names.SCHEMA_URL)
        )
        self._running: dict[int, tuple[RunBracket, Span]] = {}
        if _keep_quiet not in runnable.at_start:
            runnable.at_start.append(_keep_quiet)

    # -- sending -------------------------------------------------------------------------------------------------------

    @contextmanager
    def around_publish(self, publish: PublishBracket) -> Iterator[None]:
        """Trace a send: a PRODUCER span, or a CLIENT span for many messages, whose context all of them carry."""
        kind = self._trace.SpanKind.CLIENT if publish.many else self._trace.SpanKind.PRODUCER
        attributes = _attributes(names.SEND, publish.topic)
        more: Attributes = {names.MESSAGE_COUNT: len(publish.messages)} if publish.many else {}
        span = self._tracer.start_span(f"{names.SEND} {publish.topic}", kind=kind, attributes=attributes | more)
        began, error = ticks(), None
        token = self._context.attach(_quiet(self._trace.set_span_in_context(span)))
        try:
            for outgoing in publish.messages:
                self._propagate.inject(outgoing.headers, self._trace.set_span_in_context(span))
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._context.detach(token)
            if error is not None:
                self._fail(span, error)
                attributes[names.ERROR_TYPE] = _type_of(error)
            span.set_attributes(_receipt(publish))
            span.end()
            self._measure.sent(publish, attributes, ticks() - began)

    # -- running -------------------------------------------------------------------------------------------------------

    @contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        """Trace a run of a message, or of a batch, as a CONSUMER span."""
        context, links = self._origin(run.messages)
        span = self._tracer.start_span(
            f"{names.PROCESS} {run.topic}",
            context=context,
            kind=self._trace.SpanKind.CONSUMER,
            attributes=_attributes(names.PROCESS, run.topic, run.group) | _place(run),
            links=links,
        )
        self._measure.started(run)
        self._running[id(run)] = run, span
        token = self._context.attach(self._trace.set_span_in_context(span, context))
        try:
            yield
        finally:
            self._context.detach(token)
            self._end(run)

    def _origin(self, messages: Sequence[Message]) -> tuple[Context, list[Link]]:
        """Return the context that a run begins in, and links to the sends; nothing is inherited from the worker."""
        carried = [self._carried_by(message) for message in messages]
        if len(messages) == 1 and self._parent:
            return carried[0], []
        sends = {
            (sent.trace_id, sent.span_id): sent
            for context in carried
            if (sent := self._trace.get_current_span(context).get_span_context()).is_valid
        }
        links = [self._trace.Link(sent) for sent in [*sends.values()][:_MOST_LINKS]]
        baggage = carried[0] if len(messages) == 1 else self._context.Context()
        return self._trace.set_span_in_context(self._trace.INVALID_SPAN, baggage), links

    def _carried_by(self, message: Message) -> Context:
        try:
            headers: Mapping[str, str] = message.headers
        except DecodeError:
            headers = {}
        return self._propagate.extract(headers, self._context.Context())

    def _end(self, run: RunBracket) -> None:
        """End the span of a run, unless the process has ended it already."""
        _, span = self._running.pop(id(run), (None, None))
        if span is None:
            return
        outcome = _outcome(run)
        span.set_attribute(names.OUTCOME, outcome)
        errors = {id(end.error): end.error for end in run.ends if end.error is not None and end.outcome in _FAILURES}
        failure = next((error for error in errors.values() if not isinstance(error, (Retry, Ignore))), None)
        if failure is not None:
            self._fail(span, failure)
        elif outcome == RunOutcome.LOST:
            span.set_status(self._trace.StatusCode.ERROR, "its claim has another owner")
            span.set_attribute(names.ERROR_TYPE, RunOutcome.LOST.value)
        span.end()
        self._measure.ended(run, outcome, None if failure is None else _type_of(failure))

    def _fail(self, span: Span, error: BaseException) -> None:
        text = in_utf8(redact(text_of(error)))
        span.set_attribute(names.ERROR_TYPE, _type_of(error))
        span.set_status(self._trace.StatusCode.ERROR, text)
        if isinstance(error, Exception):
            # as record_exception() does, which calls the error's own __str__
            stack = in_utf8(describe(error))
            parts = {"type": _type_of(error), "message": text, "stacktrace": stack, "escaped": "False"}
            span.add_event("exception", {f"exception.{name}": part for name, part in parts.items()})

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Count a message that was given up."""
        self._measure.dead(message, group)

    # -- the end of a worker process -----------------------------------------------------------------------------------

    def on_process_stop(self) -> None:
        """End the spans of runs that the process leaves behind, and send everything out."""
        from opentelemetry import _logs, metrics, trace

        for run, _ in [*self._running.values()]:
            self._end(run)
        tracer_provider, meter_provider = self._providers
        for provider in (
            tracer_provider or trace.get_tracer_provider(),
            meter_provider or metrics.get_meter_provider(),
            _logs.get_logger_provider(),
        ):
            flush = getattr(provider, "force_flush", None)  # only the SDK has it
            if flush is not None:
                flush()


class _Instruments:
    """The instruments of the metrics."""

    def __init__(self, meter: Any) -> None:
        duration = {"unit": "s", "explicit_bucket_boundaries_advisory": names.DURATION_S}
        wait = duration | {"explicit_bucket_boundaries_advisory": names.WAIT_S}
        self._send_s = meter.create_histogram(names.OPERATION_DURATION, description="Duration of sends", **duration)
        self._sent = meter.create_counter(names.SENT_MESSAGES, "{message}", "Messages that were to be sent")
        self._run_s = meter.create_histogram(names.PROCESS_DURATION, description="Duration of runs", **duration)
        self._consumed = meter.create_counter(names.CONSUMED_MESSAGES, "{message}", "Messages given to handlers")
        self._wait_s = meter.create_histogram(names.WAIT, description="From the write to the first run", **wait)
        self._dead = meter.create_counter(names.DEAD, "{message}", "Messages that were given up")
        self._task_name = BoundedNames()

    def sent(self, publish: PublishBracket, attributes: Attributes, took_s: float) -> None:
        self._send_s.record(took_s, attributes)
        self._sent.add(len(publish.messages), attributes)

    def started(self, run: RunBracket) -> None:
        attributes = _attributes(names.PROCESS, run.topic, run.group)
        self._consumed.add(len(run.messages), attributes)
        for message in run.messages:
            if message.attempt == 1:
                self._wait_s.record(run.wait_s(message), attributes)

    def ended(self, run: RunBracket, outcome: str, error_type: str | None) -> None:
        attributes = _attributes(names.PROCESS, run.topic, run.group) | {names.OUTCOME: outcome}
        if run.task:
            attributes[names.TASK] = self._task_name(run.task)
        if error_type is not None:
            attributes[names.ERROR_TYPE] = error_type
        self._run_s.record(ticks() - run.began, attributes)

    def dead(self, message: Message, group: str) -> None:
        self._dead.add(1, {names.SYSTEM: names.SYSTEM_NAME, names.DESTINATION: message.topic, names.GROUP: group})


def _attributes(operation: str, topic: str, group: str | None = None) -> Attributes:
    attributes: Attributes = {
        names.SYSTEM: names.SYSTEM_NAME,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: operation,
        names.DESTINATION: topic,
    }
    if group is not None:
        attributes[names.GROUP] = group
    return attributes


def _outcome(run: RunBracket) -> str:
    """Return the outcome of a run; one that has none yet is left behind by its process, and given back."""
    outcomes = {end.outcome.value for end in run.ends} or {RunOutcome.GIVEN_BACK.value}
    return outcomes.pop() if len(outcomes) == 1 else names.MIXED


def _place(run: RunBracket) -> Attributes:
    first, one = run.messages[0], len(run.messages) == 1
    attributes: Attributes = {names.PARTITION: str(first.partition), names.OFFSET: first.offset}
    attributes |= {names.MESSAGE_ID: first.id} if one else {names.MESSAGE_COUNT: len(run.messages)}
    if one:
        attributes[names.ATTEMPT] = first.attempt
    if run.client_id:
        attributes[names.CLIENT_ID] = run.client_id
    if run.task:
        attributes[names.TASK] = in_utf8(run.task[:TASK_NAME])  # exporters fail at what is not UTF-8, with all else
    return attributes


def _receipt(publish: PublishBracket) -> Attributes:
    """Return the place of a message that was sent, and whether this send has seen its commit."""
    if not publish.receipts:
        return {}
    attributes: Attributes = {names.COMMITTED: not publish.transactional}
    if not publish.many:
        (receipt,) = publish.receipts
        attributes[names.MESSAGE_ID] = receipt.id
        if receipt.partition is not None:
            attributes[names.PARTITION] = str(receipt.partition)
        if receipt.offset is not None:
            attributes[names.OFFSET] = receipt.offset
    return attributes


def _type_of(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _keep_quiet() -> None:
    """Suppress the instrumentation of other libraries in a thread of ours: polling is of interest to nobody."""
    from opentelemetry.context import attach

    attach(_quiet(None))


def _quiet(context: Context | None) -> Context:
    from opentelemetry.context import _SUPPRESS_INSTRUMENTATION_KEY, set_value

    return set_value(_SUPPRESS_INSTRUMENTATION_KEY, True, context)
