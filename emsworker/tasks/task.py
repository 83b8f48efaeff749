"""Tasks and subscriptions, and the routes that find the handler of a message."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum, auto
from inspect import Signature as FunctionSignature
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from emsworker.core.config import Settings
from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import ConfigError, DecodeError, Problem, Retry, UnknownTask, WrongArguments
from emsworker.core.extension import load, task_maker
from emsworker.core.model import EXPIRES_HEADER, GROUP_HEADER, TASK_HEADER, Message, Order, R, Receipt
from emsworker.core.options import is_number, refuse_reserved, refuse_unknown
from emsworker.core.process.forks import lazy
from emsworker.core.process.threads import ThreadPool
from emsworker.core.run import UNWATCHED, Run
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.publish.outgoing import MESSAGE_OPTIONS, DeliveryOptions, Outgoing, SendOptions
from emsworker.publish.transaction import OutboxTransaction
from emsworker.tasks.annotations import ArgumentTypes, ResultType, Types, read_types, signature_of
from emsworker.tasks.fair_key import add_key
from emsworker.tasks.idempotency import Once
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.results import AsyncResult, CallReceipt

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as _ParamSpec

    from emsworker.flows.canvas.words import Part, chain, group

    P = _ParamSpec("P", default=...)  # `Task` alone is Task[..., Any]
else:
    P = ParamSpec("P")


Sent = TypeVar("Sent")
T = TypeVar("T")

_FLOWS = "emsworker.flows"  # an extension: loaded when it is used


class ManyOptions(DeliveryOptions, total=False):
    """Options that many calls of a task have in common, for type checkers; see :meth:`Task.delay_many`."""

    topic: str | None
    expires: float | datetime | None


class CallOptions(ManyOptions, total=False):
    """Options of a task's call, for type checkers; see :meth:`Task.apply_async`."""

    task_id: str | None
    transaction: Any


class App(Protocol):
    """The app of a task: what tasks, and handlers by way of ``self.app``, use of it."""

    name: str
    settings: Settings

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines send."""
        ...

    def send(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message."""
        ...

    def send_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages."""
        ...

    async def asend(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message from a coroutine."""
        ...

    async def asend_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages from a coroutine."""
        ...

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call of a task by its name."""
        ...

    async def asend_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call of a task by its name, from a coroutine."""
        ...

    async def in_pool(self, name: str, topic: str, send: Callable[[Any], Sent], transaction: Any) -> Sent:
        """Send by a thread of the pool, or in a transaction of an asynchronous driver."""
        ...

    def gathers(self, transaction: Any) -> bool:
        """Return whether a send of a coroutine may share a commit with others."""
        ...

    async def send_gathered(self, name: str, prepare: Callable[[], Outgoing]) -> Receipt[Any]:
        """Send one message, which a thread prepares, together with what other coroutines send."""
        ...

    def send_calls(self, topic: str, outgoing: list[Outgoing], *, transaction: Any = None) -> list[Receipt[Any]]:
        """Send many messages whose headers may be reserved."""
        ...

    def send_prepared(self, outgoing: Outgoing, transaction: Any = None) -> Receipt[Any]:
        """Send one message whose headers may be reserved."""
        ...

    def transaction(self) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction of SQL and messages."""
        ...

    def cancel(self, message: str | Receipt, topic: str | None = None) -> bool:
        """Cancel a message; see :meth:`Ems.cancel`."""
        ...

    @overload
    def result(self, message: Receipt[R], *, group: str | None = None) -> AsyncResult[R]: ...
    @overload
    def result(self, message: str, *, group: str | None = None) -> AsyncResult: ...
    def result(self, message: Receipt[Any] | str, *, group: str | None = None) -> AsyncResult[Any]:
        """Return the result of a call."""
        ...

    def once(self, key: str | bytes, *, backend: str = "mysql", **options: Any) -> Once:
        """Return a guard around an effect."""
        ...

    def server_time(self, when: float | datetime) -> datetime:
        """Return a time, or a number of seconds from the server's now, as a time in UTC."""
        ...


CALLED_WITH = MESSAGE_OPTIONS - {"uid"} | {"topic", "expires", "task_id", "transaction"}


def check_function(what: str, function: Any) -> None:
    """Check that a decorator was put on a function.

    Raises:
        ConfigError: it was not.
    """
    if isinstance(function, Handler):
        fix = "it is declared already; declare the function itself, under another name"
        raise ConfigError([Problem(what, function.name, fix)])
    if not callable(function):
        raise ConfigError(
            [Problem(what, repr(function), f"@app.{what} is put on a function; a name is given as name=")]
        )


def full_name(function: Any) -> str:
    """Return the default name of a function; that of a callable object is its class's."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}".replace("<locals>.", "")


class Handler:
    """A function that is called with messages."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = iscoroutinefunction(function)
        if self.is_async and (options.transactional or options.batch):
            fix = "an async def handler has neither transactional nor batch; leave out async, or use concurrency"
            raise ConfigError([Problem("task", name, fix)])

    @property
    def together(self) -> int:
        """The number of neighbouring messages that are run together; 0 for one by one."""
        return self.options.concurrency if self.is_async else self.options.batch

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run it for one message; ``transaction`` is given to transactional handlers only."""
        raise NotImplementedError

    def dump_result(self, value: Any) -> Any:
        """Return what it has returned, as it is stored.

        Raises:
            EncodeError: it is not what the handler's annotation says.
        """
        return value

    def call_batch(self, messages: Sequence[Message], transaction: Any = None) -> Any:
        """Run it for several messages at once."""
        first = () if transaction is None else (transaction,)
        return self.function(*first, messages)


class Subscription(Handler):
    """A handler for every message of a topic, in a group of its own: ``function(message)``."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        super().__init__(function, name, options)
        if options.priority is not None:
            fix = "a subscription sends nothing; give the priority when you send"
            raise ConfigError([Problem("priority", str(options.priority), fix)])
        if options.typed:
            raise ConfigError([Problem("typed", "True", "a subscription gets messages, whose bodies are plain JSON")])

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run it for one message."""
        if transaction is None:
            return self.function(message)
        return self.function(transaction, message)


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
        return self.receipt_of(self.app.send_prepared(call, transaction))

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
        return prepare_call(self.app, target, body, expires, task_id, options)

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
        sent = self.app.send_calls(topics.pop(), prepared, transaction=transaction) if prepared else []
        return sent if self.result_type is None else [self.receipt_of(receipt) for receipt in sent]

    async def adelay_many(
        self, calls: Iterable[Any], *, transaction: Any = None, **options: Unpack[ManyOptions]
    ) -> list[Receipt[R]]:
        """Send many calls from a coroutine; see :meth:`delay_many`, and :meth:`Ems.asend` for a cancellation."""

        def send(transaction: Any) -> list[Receipt[R]]:
            return self.delay_many(calls, transaction=transaction, **options)

        name, topic = f"calls of {self.name}", options.get("topic") or self.topic
        return await self.app.in_pool(name, topic, send, transaction)

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
        if task.app.gathers(transaction):
            return task.receipt_of(await task.app.send_gathered(name, lambda: self._prepare(args, kwargs)))

        def send(transaction: Any) -> Receipt[R]:
            options: CallOptions = {**self.options, "transaction": transaction}
            return task.apply_async(args, kwargs, **options)

        return await task.app.in_pool(name, self.options.get("topic") or task.topic, send, transaction)

    def _prepare(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Outgoing:
        options = {name: value for name, value in self.options.items() if name != "transaction"}
        return self.task.prepare(args, kwargs, **options)  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return f"<PreparedTask {self.task.name} of {self.task.app.name}>"


def call_body(task: str, args: Any, kwargs: Any) -> list[Any]:
    """Return the arguments of a call as they are sent.

    Raises:
        WrongArguments: they are not a list and a dict by names.
    """
    kwargs = {} if kwargs is None else kwargs
    if type(args) is tuple and type(kwargs) is dict and not kwargs:  # the usual call
        return [list(args), {}]
    if isinstance(args, str | bytes | Mapping) or not isinstance(args, Iterable):
        raise WrongArguments(
            f"args of task {task!r} is a {type(args).__name__}; give a list or tuple; nothing was sent"
        )
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise WrongArguments(f"kwargs of task {task!r} must be a dict by names of arguments; nothing was sent")
    return [list(args), dict(kwargs)]


@dataclass(frozen=True)
class CallTarget:
    """The target of a call: its task's name, and the topic and group that run it."""

    task: str
    topic: str
    group: str


def prepare_call(
    app: App,
    target: CallTarget,
    body: list[Any],
    expires: float | datetime | None,
    task_id: str | None,
    options: DeliveryOptions,
) -> Outgoing:
    """Return a call as it is sent; the arguments and errors are those of :meth:`Task.apply_async`.

    Args:
        body: made by :func:`call_body`.
    """
    headers = {TASK_HEADER: target.task, GROUP_HEADER: target.group}
    if given := options.pop("headers", None):
        refuse_reserved(given)
        headers = Outgoing(target.topic, None, headers=given).headers | headers
    if expires is not None:
        headers[EXPIRES_HEADER] = app.server_time(_checked_expiry(expires)).isoformat()
    wanted: SendOptions = {**options, "headers": headers, "uid": task_id}
    return Outgoing(target.topic, body, **wanted)


def _checked_expiry(expires: Any) -> float | datetime:
    if isinstance(expires, datetime):
        return expires
    if not is_number(expires) or not -LONGEST_S <= expires <= LONGEST_S:
        raise ConfigError([Problem("expires", repr(expires), "must be a number of seconds, or a datetime")])
    return float(expires)


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
        return self.task.receipt_of(self.task.app.send_prepared(self.prepare(), transaction))

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


class PassedOver(Enum):
    """The marker of a call that a group neither runs nor refuses.

    ``PASSED_OVER``: its task belongs to another group of the topic; ``HELD``: its task is paused;
    ``POSTPONED``: a limit of its task holds it up.
    """

    PASSED_OVER = auto()
    HELD = auto()
    POSTPONED = auto()


PASSED_OVER = PassedOver.PASSED_OVER
HELD = PassedOver.HELD
POSTPONED = PassedOver.POSTPONED


@dataclass
class Route:
    """The handlers of one group on one topic: its tasks by name, or one subscription for everything."""

    topic: str
    group: str
    tasks: dict[str, Task] = field(default_factory=dict)
    subscription: Subscription | None = None
    filter: Filter = EVERYTHING
    order: Order = Order.NONE
    _made: dict[str, Task] = field(default_factory=dict)

    def find(self, name: str) -> Task | None:
        """Return a task of the group: one that was declared, or one that an extension gives to groups with tasks."""
        found = self.tasks.get(name) or self._made.get(name)
        if found is None and self.tasks and (make := task_maker(name)) is not None:
            found = make(self, name)
            if found is not None:
                self._made[name] = found
        return found

    def declare_order(self, wanted: str | None) -> None:
        """Set the order in which the group runs, as a handler asks for it.

        Raises:
            ConfigError: there is no such order, another handler of the group asked for another one, or a handler
                takes several messages at once.
        """
        if wanted is None:
            return
        if wanted not in tuple(Order):
            raise ConfigError(
                [Problem("order", repr(wanted), f"must be one of {', '.join(map(repr, map(str, Order)))}")]
            )
        if self.order not in (Order.NONE, wanted):
            fix = f"another handler of {self.topic}/{self.group} asks for {str(self.order)!r}; a group has one order"
            raise ConfigError([Problem("order", repr(wanted), fix)])
        self.order = Order(wanted)

    def check_order(self, order: Order) -> None:
        """Refuse handlers that cannot keep the group's order.

        Raises:
            ConfigError: one takes several messages in a call.
        """
        for handler in self.handlers:
            if order is not Order.NONE and handler.options.batch:
                fix = f"group {self.group!r} runs in order ({order}), one message at a time: leave out batch"
                raise ConfigError([Problem(handler.name, f"batch={handler.options.batch}", fix)])

    @property
    def handlers(self) -> list[Handler]:
        """All handlers of the group."""
        return [*self.tasks.values(), *([self.subscription] if self.subscription is not None else [])]

    @property
    def concurrency(self) -> int:
        """The most messages that an async handler of the group may run at once; 0 if it has none."""
        return max((handler.together for handler in self.handlers if handler.is_async), default=0)

    @property
    def at_once(self) -> bool:
        """True if a thread may run several of its messages at once."""
        return any(handler.together for handler in self.handlers)

    def resolve(self, message: Message) -> Handler | PassedOver:
        """Return the handler of a message, or ``PASSED_OVER`` for a call of a task that another group runs.

        Raises:
            UnknownTask: no task of that name is known here, and no other group was to run it.
            DecodeError: its headers are damaged.
        """
        if self.subscription is not None:
            return self.subscription
        name = message.headers.get(TASK_HEADER)
        task = self.tasks.get(name) if name is not None else None
        if task is None and name and message.headers.get(GROUP_HEADER, self.group) != self.group:
            return PASSED_OVER
        task = task or (self.find(name) if name else None)
        if task is None:
            what = f"task {name!r} is not known to this worker" if name else "the message names no task"
            raise UnknownTask(f"{what}; known in {self.topic}/{self.group}: {', '.join(sorted(self.tasks)) or 'none'}")
        return task
