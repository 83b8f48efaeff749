"""Tasks, which are called now or sent to be run by a worker, and their calls that are not sent yet."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from inspect import Signature as FunctionSignature
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Self, TypeVar, Unpack, overload

from emsworker.core.errors import DecodeError, Retry, WrongArguments
from emsworker.core.extension import load
from emsworker.core.model import Message, R, Receipt
from emsworker.core.options import refuse_unknown
from emsworker.core.process.forks import lazy
from emsworker.core.run import UNWATCHED, Run
from emsworker.publish.outgoing import DeliveryOptions, Outgoing
from emsworker.tasks.annotations import ArgumentTypes, ResultType, Types, read_types, signature_of
from emsworker.tasks.calls import CALLED_WITH, CallOptions, CallTarget, ManyOptions, call_body, prepare_call
from emsworker.tasks.fair_key import add_key
from emsworker.tasks.handler import Handler
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.port import App
from emsworker.tasks.results import AsyncResult, CallReceipt

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as _ParamSpec

    from emsworker.flows import Part, chain, group

    P = _ParamSpec("P", default=...)  # `Task` alone is Task[..., Any]
else:
    P = ParamSpec("P")


T = TypeVar("T")

_FLOWS = "emsworker.flows"  # an extension: loaded when it is used


@dataclass(frozen=True, slots=True)
class Request:
    """The message and the present run of a bound task.

    Args:
        attempt: 1 for the first run.
        offset, partition, topic: the message's place.
        key: text, or bytes if it is not UTF-8.
        run: its present run, whose methods are here too.
    """

    id: str
    task: str
    attempt: int
    topic: str
    partition: int
    offset: int
    group: str
    key: str | bytes | None
    headers: Mapping[str, str]
    run: Run = UNWATCHED

    @property
    def time_left(self) -> float:
        """Seconds until the first of its limits; see :attr:`Run.time_left`."""
        return self.run.time_left

    @property
    def cancelled(self) -> bool:
        """True if the message was cancelled; see :attr:`Run.cancelled`."""
        return self.run.cancelled

    def extend(self, seconds: float) -> None:
        """Ask for at least this many seconds from now; see :meth:`Run.extend`."""
        self.run.extend(seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Report progress; see :meth:`Run.report_progress`."""
        self.run.report_progress(fraction, text)


@dataclass(frozen=True, slots=True)
class BoundTask:
    """``self`` of a task declared with ``bind=True``."""

    task: Task
    request: Request

    @property
    def app(self) -> App:
        """The task's app."""
        return self.task.app

    @property
    def cancelled(self) -> bool:
        """True if the message was cancelled; see :attr:`Run.cancelled`."""
        return self.request.cancelled

    def retry(self, reason: str = "", *, countdown: float | None = None) -> NoReturn:
        """Give up this attempt and run again later.

        Args:
            countdown: seconds until then; without it the ladder decides.
        """
        raise Retry(reason, countdown=countdown)


class Task(Handler, Generic[P, R]):
    """A function that can be called now (``task(2, 3)``) or sent to be run by a worker (``task.delay(2, 3)``).

    For a type checker ``P`` are the arguments of its calls, and ``R`` is what it returns.
    """

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        name: str,
        options: HandlerOptions,
        *,
        topic: str,
        group: str,
        bind: bool,
    ) -> None:
        super().__init__(function, name, options)
        self.app = app
        self.topic = topic
        self.group = group
        self.bind = bind
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        if options.typed:  # otherwise at its first use, when all that its annotations name is there
            self.types  # noqa: B018 - read here

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, without the stream."""
        value: R = self.function(*args, **kwargs)
        return value

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run the call that a message holds."""
        try:
            args, kwargs = message.body
        except (TypeError, ValueError):
            args = kwargs = None
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, dict):
            raise DecodeError(f"the body of {message.id} is not a call of a task: it must be [args, kwargs]")
        return self.call_with(args, kwargs, message, transaction)

    def call_with(self, args: Sequence[Any], kwargs: Mapping[str, Any], message: Message, transaction: Any) -> Any:
        """Run the function with these arguments, for a message.

        Raises:
            DecodeError: one is not what its annotation says.
        """
        if self.argument_types is not None:
            args, kwargs = self.argument_types.build(args, kwargs)
        if transaction is not None:
            args = (transaction, *args)
        if self.bind:
            args = (BoundTask(self, self._request(message)), *args)
        return self.function(*args, **kwargs)

    def _request(self, message: Message) -> Request:
        return Request(
            message.id,
            self.name,
            message.attempt,
            message.topic,
            message.partition,
            message.offset,
            self.group,
            message.key,
            message.headers,
            message.run,
        )

    @lazy
    def _signature(self) -> FunctionSignature | None:
        """The function's signature; ``None`` if that is not known, or messages reach it in batches."""
        return None if self.options.batch else signature_of(self.function)

    @property
    def argument_names(self) -> list[str] | None:
        """The names of the arguments of its calls; ``None`` if they are not known, or any name is one."""
        parameters = [] if self._signature is None else [*self._signature.parameters.values()]
        if self._signature is None or any(one.kind is one.VAR_KEYWORD for one in parameters):
            return None
        return [one.name for one in parameters][self.bind + self.options.transactional :]

    @lazy
    def types(self) -> Types:
        """The types of what is built by the function's annotations."""
        return self.read_types(self.function)

    def read_types(self, function: Callable[..., Any]) -> Types:
        """Return what is built by the annotations of a function of this task."""
        if self.options.batch:
            return Types()
        given = self.bind + self.options.transactional
        return read_types(self.name, function, signature_of(function), given, self.options.typed)

    @lazy
    def argument_types(self) -> ArgumentTypes | None:
        """The types of those arguments that are built from JSON; ``None`` if there are none."""
        return self.types.arguments

    @lazy
    def result_type(self) -> ResultType | None:
        """The type of what the function returns, if that is built from JSON."""
        return self.types.result

    def dump_arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return arguments as they are sent, a list and a dict.

        Raises:
            WrongArguments: one is not what its annotation says.
        """
        return [args, kwargs] if self.argument_types is None else self.argument_types.dump(args, kwargs)

    def dump_result(self, value: Any) -> Any:
        """Return what the function has returned, as it is stored.

        Raises:
            EncodeError: it is not what the annotation says.
        """
        return value if self.result_type is None else self.result_type.dump(value)

    def build_result(self, stored: Any) -> Any:
        """Return what the function has returned, from its stored form.

        Raises:
            DecodeError: it is not what the annotation says.
        """
        return stored if self.result_type is None else self.result_type.build(stored)

    @lazy
    def _by_position(self) -> range:
        """The numbers of arguments that may be given by position alone: checks the usual call ten times faster."""
        parameters = [] if self._signature is None else [*self._signature.parameters.values()]
        if self._signature is None or any(one.kind is not one.POSITIONAL_OR_KEYWORD for one in parameters):
            return range(0)
        first = self.bind + self.options.transactional
        least = sum(one.default is one.empty for one in parameters)
        return range(max(least - first, 0), max(len(parameters) - first + 1, 0))

    def check_call(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_partial: bool = False) -> None:
        """Check that the function takes these arguments, as a worker will give them.

        Args:
            is_partial: others may come before them.

        Raises:
            WrongArguments: it does not.
        """
        if self._signature is None or (not kwargs and len(args) in self._by_position):
            return
        given_first = (None,) * (self.bind + self.options.transactional)
        bind = self._signature.bind_partial if is_partial else self._signature.bind
        try:
            bind(*given_first, *args, **kwargs)
        except TypeError as error:
            names = [str(one) for one in self._signature.parameters.values()][len(given_first) :]
            raise WrongArguments(
                f"task {self.name!r} cannot be called with these arguments: {error}; it takes ({', '.join(names)}); "
                "nothing was sent"
            ) from None

    def using(self, **options: Unpack[CallOptions]) -> PreparedTask[P, R]:
        """Return the task with options for its next calls: ``add.using(key="a", expires=60).delay(2, 3)``.

        Args:
            options: those of :meth:`apply_async`.

        Raises:
            ConfigError: an option is unknown.
        """
        refuse_unknown("using()", options, CALLED_WITH)
        return PreparedTask(self, options)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Send a call to the stream, and return after its commit."""
        return self.apply_async(args, kwargs)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Send a call to the stream from a coroutine; see :meth:`Ems.asend` for what a cancellation does."""
        return await PreparedTask(self, {}).adelay(*args, **kwargs)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        expires: float | datetime | None = None,
        task_id: str | None = None,
        topic: str | None = None,
        transaction: Any = None,
        **options: Unpack[DeliveryOptions],
    ) -> Receipt[R]:
        """Send a call to the stream.

        Args:
            args, kwargs: of the function.
            expires: seconds from now, or a time, after which it is no longer run.
            task_id: a UUID of your own; a second call with the same one in the topic is not sent again.
            topic: instead of the task's.
            transaction: send with its commit, as in :meth:`Ems.send`.
            options: ``countdown`` (seconds before it may run), ``delay`` (the same as text) or ``eta`` (a time, without
                a zone in UTC), ``key``, ``partition``, ``tag``, ``headers``, ``serializer``, ``compression``,
                ``dedup_key``, ``dedup_window``, ``priority`` (by default the task's) as in :meth:`Ems.send`.

        Raises:
            WrongArguments: the function does not take these arguments; nothing was sent.
            EncodeError: an argument cannot be serialized; nothing was sent.
            ConfigError: an option is unknown or wrong; nothing was sent. All that :meth:`Ems.send` raises, besides.
        """
        refuse_unknown("apply_async()", options, CALLED_WITH)
        call = self.prepare(args, kwargs, expires=expires, task_id=task_id, topic=topic, **options)
        return self.receipt_of(self.app.publisher.publish(call.topic, [call], transaction)[0])

    def receipt_of(self, receipt: Receipt[Any]) -> Receipt[R]:
        """Return the receipt of a call of this task; one that names the task if its result is built."""
        if self.result_type is None:
            return receipt
        place = receipt.id, receipt.topic, receipt.partition, receipt.offset, receipt.created
        return CallReceipt(*place, (self.topic, self.name, self.group))

    def result(self, call: Receipt[R] | str) -> AsyncResult[R]:
        """Return the result of a call of this task; it is not fetched yet.

        Args:
            call: what sending it returned, or its ``id``: :meth:`Ems.result` cannot know the type of a result by that.
        """
        known: Receipt[R] = call if isinstance(call, Receipt) else Receipt(call, self.topic, None, None)
        return self.app.result(self.receipt_of(known), group=self.group)

    def body_of(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> list[Any]:
        """Return the arguments of a call as they are sent, checked.

        Raises:
            WrongArguments: the function does not take them.
        """
        body = call_body(self.name, args, kwargs)
        self.check_call(*body)
        return body if self.argument_types is None else self.argument_types.dump(*body)

    def prepare(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        expires: float | datetime | None = None,
        task_id: str | None = None,
        topic: str | None = None,
        **options: Unpack[DeliveryOptions],
    ) -> Outgoing:
        """Return a call that :meth:`apply_async` would send, checked; the arguments and errors are its."""
        body = self.body_of(args, kwargs)
        options.setdefault("priority", self.options.priority)
        if self.options.fair is not None:
            options["headers"] = self.with_key(body, options.get("headers"))
        target = self._target if topic is None else CallTarget(self.name, topic or self.topic, self.group)
        return prepare_call(target, body, expires, task_id, options, self.app.server_time)

    @lazy
    def _target(self) -> CallTarget:
        return CallTarget(self.name, self.topic, self.group)

    def with_key(self, body: Sequence[Any], headers: Any = None) -> Any:
        """Return the headers of a call with the key by which it shares the group, if that is fair."""
        first = self.bind + self.options.transactional
        return add_key(self.options.fair, self._signature, first, body, headers)

    @overload
    def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]: ...
    @overload
    def s(self, *args: Any, **kwargs: Any) -> PartialSignature[R]: ...
    def s(self, *args: Any, **kwargs: Any) -> PartialSignature[R]:
        """Return a call that is not sent yet, to be given to what sends it: ``flow.call(add.s(2, 3))``.

        In a chain or a chord the value of what ran before comes first: ``add.s(2, 3) | add.s(4)``.

        Raises:
            WrongArguments: the function does not take these arguments, whatever comes before them.
        """
        self.check_call(args, kwargs, is_partial=True)
        return Signature(self, args, kwargs)

    def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R]:
        """Return a call that takes nothing of what ran before it in a chain or a chord.

        Raises:
            WrongArguments: the function does not take these arguments.
        """
        self.check_call(args, kwargs)
        return Signature(self, args, kwargs, immutable=True)

    def map(self, items: Iterable[Any]) -> Signature[list[R]]:
        """Return one call that runs the function for each of many arguments, one after another, in one message."""
        return self.starmap((item,) for item in items)

    def starmap(self, items: Iterable[Sequence[Any]]) -> Signature[list[R]]:
        """Return one call that runs the function for each of many lists of arguments; see :meth:`map`.

        Raises:
            WrongArguments: the function does not take one of them, or its messages cannot be run like this.
        """
        call: Signature[list[R]] = load(f"{_FLOWS}.canvas.maps:starmap")(self, items)
        return call

    def chunks(self, items: Iterable[Sequence[Any]], n: int) -> group[list[R]]:
        """Return a group of calls, each of which runs the function for at most ``n`` lists of arguments.

        Raises:
            WrongArguments: as :meth:`starmap`.
        """
        parts: group[list[R]] = load(f"{_FLOWS}.canvas.words:chunks")(self, items, n)
        return parts

    def delay_many(
        self, calls: Iterable[Any], *, transaction: Any = None, **options: Unpack[ManyOptions]
    ) -> list[Receipt[R]]:
        """Send many calls in one commit, as fast as :meth:`Ems.send_many`: ``add.delay_many([(1, 2), (3, 4)])``.

        Args:
            calls: each is a tuple or list of arguments, a dict of keyword arguments, a :class:`Signature` of this task
                with options of its own, or, for a task of one argument, that argument.
            transaction: send with its commit, as in :meth:`Ems.send`.
            options: of all of them, as in :meth:`apply_async`; not for signatures.

        Raises:
            as :meth:`apply_async`; every call is checked before the first is sent.
        """
        refuse_unknown("delay_many()", options, CALLED_WITH - {"task_id", "transaction"})
        if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Iterable):
            raise WrongArguments(
                f"calls of task {self.name!r} is a {type(calls).__name__}; give a list of arguments; nothing was sent"
            )
        prepared = [self._prepare_one(call, options) for call in calls]
        topics = {call.topic for call in prepared}
        if len(topics) > 1:
            raise WrongArguments(
                f"calls of task {self.name!r} are for topics {', '.join(sorted(topics))}; give those of one topic"
            )
        sent = self.app.publisher.publish(topics.pop(), prepared, transaction, many=True) if prepared else []
        return sent if self.result_type is None else [self.receipt_of(receipt) for receipt in sent]

    async def adelay_many(
        self, calls: Iterable[Any], *, transaction: Any = None, **options: Unpack[ManyOptions]
    ) -> list[Receipt[R]]:
        """Send many calls from a coroutine; see :meth:`delay_many`, and :meth:`Ems.asend` for a cancellation."""

        def send(transaction: Any) -> list[Receipt[R]]:
            return self.delay_many(calls, transaction=transaction, **options)

        name, topic = f"calls of {self.name}", options.get("topic") or self.topic
        return await self.app.publisher.in_pool(name, topic, send, transaction)

    def _prepare_one(self, call: Any, options: ManyOptions) -> Outgoing:
        if isinstance(call, Signature):
            if call.task is not self:
                raise WrongArguments(f"a call of {call.task.name!r} was given to task {self.name!r}; nothing was sent")
            return call.prepare()
        if isinstance(call, Mapping):
            return self.prepare((), call, **options)
        return self.prepare(call if isinstance(call, tuple | list) else (call,), **options)

    def cancel(self, call: str | Receipt) -> bool:
        """Cancel a call of this task, also while it runs; see :meth:`Ems.cancel`."""
        return self.app.cancel(call, None if isinstance(call, Receipt) else self.topic)

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.app.name}>"


class CoroutineTask(Task[P, R]):
    """A task whose function is an ``async def``: a direct call returns its coroutine."""

    if TYPE_CHECKING:

        def __call__(  # type: ignore[override]
            self, *args: P.args, **kwargs: P.kwargs
        ) -> Coroutine[Any, Any, R]:
            """Return the function's coroutine, without the stream."""


class GivenTask(Task[P, R]):
    """A task whose function gets more than its caller gives: itself, a transaction, or messages in a batch.

    ``P`` are the arguments of :meth:`Task.delay`. In a direct call you give the function all it gets.
    """

    if TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Run the function here and now, without the stream."""


class PreparedTask(Generic[P, R]):
    """A task, and the options of its next calls; :meth:`Task.using` makes it."""

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self.task = task
        self.options = options

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Send a call to the stream, and return after its commit."""
        return self.task.apply_async(args, kwargs, **self.options)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> Receipt[R]:
        """Send a call to the stream from a coroutine; see :meth:`Ems.asend` for what a cancellation does."""
        task, name, transaction = self.task, f"a call of {self.task.name}", self.options.get("transaction")
        if task.app.publisher.gathers(transaction):
            return task.receipt_of(await task.app.publisher.send_gathered(name, lambda: self._prepare(args, kwargs)))

        def send(transaction: Any) -> Receipt[R]:
            options: CallOptions = {**self.options, "transaction": transaction}
            return task.apply_async(args, kwargs, **options)

        return await task.app.publisher.in_pool(name, self.options.get("topic") or task.topic, send, transaction)

    def _prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outgoing:
        options = {name: value for name, value in self.options.items() if name != "transaction"}
        return self.task.prepare(args, kwargs, **options)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<PreparedTask {self.task.name} of {self.task.app.name}>"


@dataclass(slots=True)
class PartialSignature(Generic[R]):
    """A call whose first arguments may be missing: in a chain they come from what ran before.

    Args:
        options: as in :meth:`Task.apply_async`.
        immutable: it takes nothing of what ran before.
        callbacks, errbacks: called when it has succeeded, or failed for good.
    """

    task: Task[..., R]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: CallOptions = field(default_factory=lambda: CallOptions())
    immutable: bool = False
    callbacks: tuple[Part[Any], ...] = ()
    errbacks: tuple[Part[Any], ...] = ()

    def set(self, **options: Unpack[CallOptions]) -> Self:
        """Return the call with options: ``add.s(2, 3).set(priority=5)``.

        Raises:
            ConfigError: an option is unknown.
        """
        refuse_unknown("set()", options, CALLED_WITH - {"transaction"})
        return replace(self, options={**self.options, **options})

    def link(self, callback: Part[Any]) -> None:
        """Have something called with the value of this call; what follows does not wait for it."""
        self.callbacks = (*self.callbacks, callback)

    def link_error(self, errback: Part[Any]) -> None:
        """Have something called if this call fails for good: with request, error and traceback, or with its id."""
        self.errbacks = (*self.errbacks, errback)

    def on_error(self, errback: Part[Any]) -> Self:
        """Do as :meth:`link_error` does, and return the call."""
        self.link_error(errback)
        return self

    def __or__(self, after: Part[T]) -> chain[T]:
        """Return a chain of this call and what comes after it."""
        joined: chain[T] = load(f"{_FLOWS}.canvas.words:chain")(self, after)
        return joined


class Signature(PartialSignature[R]):
    """A call that is not sent yet; :meth:`Task.s` makes it."""

    __slots__ = ()

    def delay(self, *, transaction: Any = None) -> Receipt[R]:
        """Send it now; see :meth:`Task.apply_async`."""
        call = self.prepare()
        return self.task.receipt_of(self.task.app.publisher.publish(call.topic, [call], transaction)[0])

    def prepare(self) -> Outgoing:
        """Return what is sent.

        Raises:
            WrongArguments: an argument is missing, or it has callbacks.
        """
        if self.callbacks or self.errbacks:
            raise WrongArguments(
                f"a call of {self.task.name!r} has link or link_error, so it is a flow: send it as chain(...).delay()"
            )
        return self.task.prepare(self.args, self.kwargs, **self.options)  # type: ignore[misc]
