"""Functions of flows: tasks whose messages run a flow, each until it ends or waits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from inspect import Parameter, iscoroutinefunction, signature
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

from emsworker.extending.apps import Ems, HandlerOptions, Signature, Task, Types
from emsworker.extending.errors import (
    AssertionBroken,
    ConfigError,
    DecodeError,
    Problem,
    TopicMoved,
    UnknownTask,
    WrongArguments,
    text_of,
)
from emsworker.extending.processes import ticks
from emsworker.extending.values import (
    DEFAULT_LADDER,
    SLOT_HEADER,
    Dead,
    Ladder,
    Message,
    new_uid,
    parse_duration,
    uid_text,
)
from emsworker.flows.branches import open_root
from emsworker.flows.errors import FlowChanged, FlowLost, FlowTimeout
from emsworker.flows.flow import AsyncFlow, Flow
from emsworker.flows.handle import FlowHandle
from emsworker.flows.port import FlowFunction, FlowStore
from emsworker.flows.rows import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    FlowRow,
    Loaded,
    NewFlow,
    RunChange,
    StoredError,
    decode_value,
    encode_value,
)
from emsworker.flows.run import FlowRun, RunAgain, RunLost, Suspended, is_final
from emsworker.flows.starting import FLOW_HEADER, new_flow, start, start_later
from emsworker.flows.stores import check_transaction, store_for, store_named, stores_of
from emsworker.flows.undoing import undo_all

P = ParamSpec("P")
R = TypeVar("R")

_TURN_S = 0.05  # between two tries, while the topic moves
_UNKNOWN_VERSION = timedelta(seconds=5)
_LONGEST_DEBOUNCE_S = 7 * 86400.0

_LADDER = Ladder.parse(DEFAULT_LADDER)  # its delays are the group's own; only the end of the attempts counts here

log = logging.getLogger(__name__)


class FlowTask(Task[P, R], FlowFunction, Generic[P, R]):
    """The function of a flow.

    Attributes:
        version: that with which flows are started; flows of other versions are run by the functions of those.
    """

    def __init__(
        self, app: Ems, function: Callable[..., Any], name: str, options: HandlerOptions, version: int, **place: Any
    ) -> None:
        super().__init__(app, function, name, options, bind=True, **place)
        _check_takes_flow(name, function)
        self.flow_app = app
        self.version = version
        self._functions = {version: function}
        self._types_by_version: dict[int, Types] = {}

    def add_version(self, version: int, function: Callable[..., Any]) -> None:
        """Add the function of another version; flows are started with the highest.

        Raises:
            ConfigError: that version is there already.
        """
        if version in self._functions:
            raise ConfigError([Problem("flow", self.name, f"version {version} of it is declared already")])
        if iscoroutinefunction(function) != self.is_async:
            fix = "all versions of a flow are async def functions, or none is; give this one another name"
            raise ConfigError([Problem("flow", self.name, fix)])
        _check_takes_flow(self.name, function)
        self._functions[version] = function
        self.version = max(self._functions)
        self.function = self.__wrapped__ = self._functions[self.version]
        for made in ("types", "argument_types", "result_type", "_signature", "_by_position"):
            self.__dict__.pop(made, None)  # of the function before
        if self.options.typed:
            self.types_of(version)

    def types_of(self, version: int) -> Types:
        """Return what is built by the annotations of a version's function."""
        if version not in self._types_by_version:
            self._types_by_version[version] = self.read_types(self._functions[version])
        return self._types_by_version[version]

    def build_value(self, value: Any, version: int, args: Sequence[Any]) -> Any:
        """Return the value of a flow that has ended well, from plain JSON.

        Raises:
            DecodeError: it is not what the function's annotation says.
        """
        types = self.types_of(version).result if version in self._functions else None
        return value if types is None else types.build(value)

    @property
    def store(self) -> FlowStore:
        """The store that keeps its flows."""
        return store_for(self.flow_app, self.topic)

    # -- starting ------------------------------------------------------------------------------------------------------

    def start(
        self,
        *args: Any,
        id: str | None = None,
        transaction: Any = None,
        attributes: Mapping[str, Any] | None = None,
        timeout: float | str | None = None,
        debounce: float | str | None = None,
        **kwargs: Any,
    ) -> FlowHandle[R]:
        """Start a flow, and return after its commit.

        Args:
            args, kwargs: of the function.
            id: of the flow; if one with it was started before, nothing is started again. By default a new UUID.
            transaction: start it with its commit, as in :meth:`Ems.send`.
            attributes: texts to find it by.
            timeout: seconds, or ``"7d"``, after which it has failed.
            debounce: seconds, or ``"5s"``, for which there must be no other start with this ``id``: the last start of a
                burst starts one flow, with its arguments, at the latest ten times as long after the first one. The
                flow has an id of its own, ``ID/UUID``; ``created`` is true for the first start.

        Raises:
            WrongArguments, EncodeError, InvalidName: as :func:`new_flow`; nothing was started.
            FlowExists: the flow with this id is of another function, or has other arguments.
            SchemaMissing: the database has no tables for flows: ``ems migrate --with flows``.
        """
        timeout_s = None if timeout is None else _seconds("timeout", timeout)
        debounce_s = None if debounce is None else _debounced(id, debounce)
        key = uid_text(new_uid()) if id is None else id
        more: dict[str, Any] = {"timeout_s": timeout_s, "attributes": attributes, "debounce_s": debounce_s}

        def start_on(store: FlowStore, known: FlowRow | None) -> FlowHandle[R]:
            return self._start(new_flow(self, store, args, kwargs, key, **more), store, known, transaction)

        started: FlowHandle[R] = self._where_kept(start_on, transaction, None if id is None or debounce else key)
        return started

    def _start(self, new: NewFlow, store: FlowStore, known: FlowRow | None, transaction: Any) -> FlowHandle[R]:
        if known is not None:
            new.check_same(known.name, known.args)
            return FlowHandle(new.key, store, self.flow_app)
        if new.burst is not None:
            key = start_later(store, self, new, transaction)
            return FlowHandle(key, store, self.flow_app, created=key == new.key)
        is_new = start(store, self, new, transaction)
        return FlowHandle(new.key, store, self.flow_app, created=is_new)

    def _where_kept(
        self, start_on: Callable[[FlowStore, FlowRow | None], Any], transaction: Any, key: str | None
    ) -> Any:
        """Start a flow where its topic is kept.

        Args:
            start_on: gets that store; or another one, where the topic was before, and the flow with the same id there.
            key: the id, if others may have used it.

        Raises:
            TopicMoved: the topic is just moving, and the caller's transaction is where it was.
        """
        app, until = self.flow_app, ticks() + self.flow_app.settings.publish_timeout_s
        while True:
            store, *former = stores_of(app, self.topic) if key is not None else (self.store,)
            for one in former:
                if (known := one.find(key or "")) is not None:
                    return start_on(one, known)
            check_transaction(app, self.topic, store, transaction)
            try:
                return start_on(store, None)
            except AssertionBroken:  # the topic has left, or was deleted, since it was looked up
                app.broker.forget(self.topic)
                if transaction is not None or ticks() > until:
                    raise TopicMoved(self.topic, app.streams.locate(self.topic)[-1]) from None
                time.sleep(_TURN_S)

    def check_kept_by(self, store: FlowStore) -> None:
        """Check that a store may keep its flows: its transactions are where its topic is, or was.

        Raises:
            WrongArguments: the flow that calls it is on another server.
        """
        if self.flow_app.settings.servers and store not in stores_of(self.flow_app, self.topic):
            kept_on = self.flow_app.streams.locate(self.topic)[-1]
            raise WrongArguments(
                f"flow {self.name!r} is kept on {kept_on!r}, and its caller on another "
                "server; a flow calls flows of its own server, and tasks anywhere"
            )

    async def astart(self, *args: Any, transaction: Any = None, **kwargs: Any) -> FlowHandle[R]:
        """Start a flow from a coroutine; see :meth:`start`, and :meth:`Ems.asend` for what a cancellation does."""

        def send(transaction: Any) -> FlowHandle[R]:
            return self.start(*args, transaction=transaction, **kwargs)

        return await self.flow_app.publisher.in_pool(f"a flow of {self.name}", self.topic, send, transaction)

    def task_named(self, name: str) -> Task[..., Any]:
        """Return a task of the app.

        Raises:
            UnknownTask: it has none of this name.
        """
        own = self.flow_app.registry.route(self.topic, self.group)
        for route in self.flow_app.registry.routes.values():
            if name in route.tasks:
                return route.tasks[name]
        if (found := own.find(name)) is not None:
            return found
        raise UnknownTask(f"task {name!r}, which undoes a step of {self.name}, is not known here")

    def dump_result(self, value: Any) -> Any:
        """Return what a message of a flow returns, which is nothing: a value is the flow's."""
        return value

    # -- running -------------------------------------------------------------------------------------------------------

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run the flow of a message; a plain call of the task starts one whose id is the message's."""
        if FLOW_HEADER not in message.headers:
            self._start_called(message)
            return None
        number, store = _number_in(message), store_named(self.flow_app, message.headers[FLOW_HEADER])
        if self.is_async:
            return self._arun(store, number, message)
        self._run(store, number, message)
        return None

    def _start_called(self, message: Message) -> None:
        try:
            args, kwargs = message.body
            args, kwargs = tuple(args), dict(kwargs)
        except (TypeError, ValueError):
            raise DecodeError(f"the body of {message.id} is not a call of a flow: it must be [args, kwargs]") from None
        slot = {name: text for name, text in message.headers.items() if name == SLOT_HEADER}

        def start_on(store: FlowStore, known: FlowRow | None) -> None:
            if known is None:
                start(store, self, new_flow(self, store, args, kwargs, message.id, headers=slot))

        try:
            self._where_kept(start_on, None, message.id)
        except WrongArguments as error:
            raise DecodeError(f"message {message.id} starts no flow: {error}") from None

    def _run(self, store: FlowStore, number: int, message: Message) -> None:
        """Run a flow until it ends or waits; again at once if what it was to wait for comes meanwhile."""
        after = None
        try:
            while (loaded := self._begin(store, number, message, after)) is not None:
                after = loaded.flow.run
                run = FlowRun(self, store, loaded, in_order=True)
                try:
                    return self._run_once(run, message)
                except RunAgain:
                    continue
                finally:
                    run.closed = True
        except (Suspended, FlowLost) as left:
            _log_left(left)

    def _run_once(self, run: FlowRun, message: Message) -> None:
        try:
            _check_deadline(run)
            args, kwargs = self._arguments(run.flow)
            value = self._functions[run.flow.version](
                Flow(run, message.attempt, message.headers.get(SLOT_HEADER)), *args, **kwargs
            )
            _check_left(run)
            run.finish(**self._end(run, value))
        except FlowLost:
            raise
        except Exception as error:
            _check_left(run)
            self._fail(run, message, error)

    async def _arun(self, store: FlowStore, number: int, message: Message) -> None:
        after = None
        try:
            while (loaded := await self._abegin(store, number, message, after)) is not None:
                after = loaded.flow.run
                run = FlowRun(self, store, loaded, in_order=False)
                try:
                    return await self._await_once(run, message)
                except RunAgain:
                    continue
                finally:
                    run.closed = True
        except (Suspended, FlowLost) as left:
            _log_left(left)

    async def _await_once(self, run: FlowRun, message: Message) -> None:
        pool = self.flow_app.pool
        try:
            _check_deadline(run)
            value = await self._await(run, message)
            _check_left(run)
            await run.afinish(**self._end(run, value))
        except FlowLost:
            raise
        except Exception as error:
            _check_left(run)
            await pool.run(partial(self._fail, run, message, error))
        except BaseExceptionGroup:  # in which a TaskGroup has wrapped it
            _check_left(run)
            raise

    async def _await(self, run: FlowRun, message: Message) -> Any:
        """Await the function until it ends, or all of it waits."""
        idle = asyncio.Event()
        flow = AsyncFlow(run, message.attempt, message.headers.get(SLOT_HEADER), idle)
        args, kwargs = self._arguments(run.flow)
        function = self._functions[run.flow.version]

        async def call() -> Any:
            open_root()
            return await function(flow, *args, **kwargs)

        main = asyncio.ensure_future(call())
        waits = asyncio.ensure_future(idle.wait())
        try:
            await asyncio.wait((main, waits), return_when=asyncio.FIRST_COMPLETED)
            if main.done():
                return await main
            await self.flow_app.pool.run(flow.suspend)
        finally:
            run.closed = True
            waits.cancel()
            main.cancel()
            await asyncio.gather(main, waits, return_exceptions=True)
        raise AssertionError("unreachable")

    def _begin(self, store: FlowStore, number: int, message: Message, after: int | None) -> Loaded | None:
        """Begin a run of a flow, or go on after one; ``None`` if there is nothing to run here and now."""
        loaded = store.begin(number, message.uid, after)
        if loaded is None or self._can_run(loaded):
            return loaded
        self._pass_on(store, loaded, message)
        return None

    async def _abegin(self, store: FlowStore, number: int, message: Message, after: int | None) -> Loaded | None:
        pool = self.flow_app.pool
        loaded = await store.abegin(number, message.uid, after, pool)
        if loaded is None or self._can_run(loaded):
            return loaded
        await pool.run(lambda: self._pass_on(store, loaded, message))
        return None

    def _can_run(self, loaded: Loaded) -> bool:
        return loaded.flow.failure is None and loaded.flow.version in self._functions

    def _pass_on(self, store: FlowStore, loaded: Loaded, message: Message) -> None:
        """Do what a flow needs that has begun and whose function is not called."""
        if loaded.flow.failure is not None:
            undo_all(self, store, loaded, message.uid)
        else:
            self._leave_to_others(store, loaded)

    def _leave_to_others(self, store: FlowStore, loaded: Loaded) -> None:
        """Let a worker that knows the flow's version run it; no attempt is charged."""
        flow = loaded.flow
        due_at = store.now() + _UNKNOWN_VERSION
        log.warning("flow %r has version %d of %s, which is not known here", flow.key, flow.version, self.name)
        store.write(flow, RunChange(state=WAITING, waits=f"a worker with version {flow.version}", wake_at=due_at))

    def failure_of(self, error: Exception) -> StoredError:
        """Return the failure of a flow that ends with an error."""
        return StoredError(type(error).__name__, text_of(error))

    def last_calls(self, error: Exception) -> Sequence[Signature[Any]]:
        """Return the calls that are made when a flow fails."""
        return ()

    def _arguments(self, flow: FlowRow) -> Any:
        """Return the arguments of a flow, a list and a dict.

        Raises:
            DecodeError: one is not what its annotation says.
        """
        args, kwargs = decode_value(flow.args)
        types = self.types_of(flow.version).arguments
        return (args, kwargs) if types is None else types.build(args, kwargs)

    def _end(self, run: FlowRun, value: Any) -> dict[str, Any]:
        """Return how a flow ends whose function has returned a value."""
        run.check_unchanged()
        run.history.check_all_asked()
        types = self.types_of(run.flow.version).result
        value = value if types is None else types.dump(value)
        return {"state": DONE, "value": encode_value(value, "what the flow returns")}

    def _fail(self, run: FlowRun, message: Message, error: Exception) -> None:
        """Decide what an error means: another try of the message, or the end of the flow."""
        final = is_final(error) or isinstance(error, FlowTimeout)
        if not final and not isinstance(self.options.decide(_LADDER, message.attempt, error), Dead):
            raise error
        run.forget_failure()
        failure = self.failure_of(error)
        if run.undoable() and not isinstance(error, FlowChanged):  # that is mended by code, and the flow resumed
            run.finish(state=RUNNING, failure=failure)  # still this run's, until another message is to go on
            loaded = run.store.begin(run.flow.id, message.uid, run.flow.run)
            if loaded is not None:
                undo_all(self, run.store, loaded, message.uid)
            return
        run.finish(self.last_calls(error), state=FAILED, failure=failure)
        run.flow.failure = failure
        raise run.flow.rejection() from error


def _check_left(run: FlowRun) -> None:
    """Go on with what the function was left with, if it has swallowed that."""
    if run.left is not None:
        raise run.left


def _check_deadline(run: FlowRun) -> None:
    deadline_at = run.flow.deadline_at
    if deadline_at is not None and deadline_at <= run.now:
        raise FlowTimeout(f"flow {run.flow.key!r} was not done before {deadline_at:%Y-%m-%d %H:%M:%S} UTC")


def _number_in(message: Message) -> int:
    try:
        (number,), _ = message.body
        return int(number)
    except (TypeError, ValueError):
        raise DecodeError(f"the body of {message.id} names no flow") from None


def _log_left(left: BaseException) -> None:
    if isinstance(left, (FlowLost, RunLost)):
        log.info("%s", left)


def _seconds(name: str, value: float | str) -> float:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigError([Problem(name, repr(value), str(error))]) from None


def _debounced(id: str | None, value: float | str) -> float:
    seconds = _seconds("debounce", value)
    if not 0 < seconds <= _LONGEST_DEBOUNCE_S:
        raise ConfigError([Problem("debounce", repr(value), "must be more than 0s, and at most 7d")])
    if id is None:
        raise ConfigError([Problem("debounce", repr(value), "needs an id, by which the starts of a burst are known")])
    return seconds


def _check_takes_flow(name: str, function: Callable[..., Any]) -> None:
    by_place = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.VAR_POSITIONAL)
    try:
        takes = any(one.kind in by_place for one in signature(function).parameters.values())
    except (TypeError, ValueError):  # it has no signature, as some functions in C
        return
    if not takes:
        raise ConfigError([Problem("flow", name, "its function takes no argument; the first one is the flow")])


class FlowDecorator(Protocol):
    """Declares the function that it is put on."""

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]], /) -> FlowTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Flow, P], R], /) -> FlowTask[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Return the flow."""
        ...
