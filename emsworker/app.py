"""The app: a registry of tasks, a broker and a configuration."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from emsworker.broker.mysql import MysqlBroker
from emsworker.broker.placed import open_broker
from emsworker.broker.port import Broker
from emsworker.core.config import Settings
from emsworker.core.extension import load
from emsworker.core.ids import check_name
from emsworker.core.model import Message, R, Receipt
from emsworker.core.options import refuse_unknown
from emsworker.core.process.forks import fork_blocked
from emsworker.core.process.threads import ThreadPool
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.core.times import in_utc
from emsworker.publish.outgoing import Outgoing, SendOptions, checked, checked_many
from emsworker.publish.transaction import OutboxTransaction, Transaction
from emsworker.tasks import decorators as typed
from emsworker.tasks.calls import CALLED_WITH, CallOptions, CallTarget, call_body, prepare_call
from emsworker.tasks.handler import Subscription
from emsworker.tasks.idempotency import Once
from emsworker.tasks.middleware import Middleware, check_middleware
from emsworker.tasks.options import TaskKeywords
from emsworker.tasks.periodic import make_periodic
from emsworker.tasks.publisher import Publisher
from emsworker.tasks.registry import Function, Registry
from emsworker.tasks.results import AsyncResult, ResultSet, results_of
from emsworker.tasks.schedules import AppSchedules
from emsworker.tasks.task import CoroutineTask, Task

if TYPE_CHECKING:
    from emsworker.consume.pull import PullConsumer
    from emsworker.flows import AsyncFlow, Flow, FlowDecorator, FlowHandle, FlowTask
    from emsworker.testing import TestApp

_FLOWS = "emsworker.flows.declaring"  # an extension: loaded when it is used

P = ParamSpec("P")
AnyTask = TypeVar("AnyTask", bound=Task[..., Any])


class Ems:
    """An app: the tasks and subscriptions of a program, and the stream that they use.

    Args:
        name: shown in logs and client lists.
        middleware: hooks around publishing and running, in order.
        config: dotted name of a module with settings.
        settings: any setting of :class:`Settings` by name; they win over ``EMS_*`` variables.

    Attributes:
        registry: what the app has declared.
        publisher: the way of its messages to the broker.

    Raises:
        ConfigError: naming every wrong setting.
    """

    def __init__(
        self, name: str = "app", *, middleware: Iterable[Middleware] = (), config: str | None = None, **settings: Any
    ) -> None:
        self.name = check_name("app", name)
        self.settings = Settings.load(config, **settings)
        self.registry = Registry(self.settings)
        self.publisher = Publisher(self.settings, lambda: self.broker)
        self.middleware: tuple[Middleware, ...] = ()
        self.add_middleware(*middleware)
        self._streams: Broker = open_broker(self.settings, self.registry.topic_settings)
        self._becomes_eager = self.settings.eager

    def add_middleware(self, *middleware: Middleware) -> None:
        """Add middleware after that which the app has, before it sends and before its worker starts.

        Raises:
            ConfigError: one is not an object of a class below Middleware, or has a bracket that is a bare generator.
        """
        check_middleware(middleware)
        self.middleware += middleware
        self.publisher.use(self.middleware)

    def reconfigure(self, **changes: Any) -> None:
        """Change settings of an app that has not been used yet, as `ems worker --url` does.

        Raises:
            ConfigError: a setting is unknown or wrong.
        """
        self.settings = self.registry.settings = self.publisher.settings = replace(self.settings, **changes)
        self.close()
        self._streams = open_broker(self.settings, self.registry.topic_settings)

    def bind_to_server(self, server: str) -> None:
        """Consume from one of several servers: :attr:`stream` and :meth:`transaction` are there from now on.

        Raises:
            ConfigError: the setting `servers` names no such server.
        """
        self.reconfigure()
        self.streams.live_on(server)

    # -- declaring -----------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> CoroutineTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[typed.PlainKeywords]) -> typed.TaskDecorator: ...  # type: ignore[overload-overlap]
    @overload
    def task(self, function: None = None, /, **options: Unpack[typed.BoundKeywords]) -> typed.BoundDecorator: ...
    @overload
    def task(
        self, function: None = None, /, **options: Unpack[typed.TransactionalKeywords]
    ) -> typed.TransactionalDecorator: ...
    @overload
    def task(
        self, function: None = None, /, **options: Unpack[typed.BoundTransactionalKeywords]
    ) -> typed.BoundTransactionalDecorator: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[typed.BatchKeywords]) -> typed.BatchDecorator: ...
    @overload
    def task(
        self, function: None = None, /, **options: Unpack[typed.TransactionalBatchKeywords]
    ) -> typed.TransactionalBatchDecorator: ...
    def task(
        self,
        function: Function | None = None,
        /,
        *,
        name: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        bind: bool = False,
        order: str | None = None,
        **options: Any,
    ) -> Any:
        """Declare a task: ``@app.task`` or ``@app.task(name=..., bind=True, ...)``.

        Args:
            name: by default ``module.function``.
            topic, group: where its calls go and which group runs them; by default the app's settings.
            bind: give the task its own request as first argument.
            order: of the whole group: ``"key"`` or ``"partition"``, see :meth:`subscribe`.
            options: see :class:`HandlerOptions`.

        For a type checker, ``delay`` takes the function's arguments, without those that the worker gives it: ``self``
        (``bind=True``) and the transaction (``transactional=True``). Calls of a batch task are not checked.

        Raises:
            ConfigError: an option is unknown or wrong, or the name is taken.
        """

        def declare(function: Function) -> Task:
            return self.registry.declare_task(self, function, name, topic, group, order, options, bind=bind)

        return declare if function is None else declare(function)

    @overload
    def subscribe(  # type: ignore[overload-overlap]
        self, topic: str, group: str | None = None, **options: Unpack[typed.SubscriberKeywords]
    ) -> Callable[[Callable[[Message], Any]], Subscription]: ...
    @overload
    def subscribe(  # type: ignore[overload-overlap]
        self, topic: str, group: str, **options: Unpack[typed.TransactionalSubscriberKeywords]
    ) -> Callable[[Callable[[Transaction, Message], Any]], Subscription]: ...
    @overload
    def subscribe(
        self, topic: str, group: str, **options: Unpack[typed.BatchSubscriberKeywords]
    ) -> Callable[[Callable[[list[Message]], Any]], Subscription]: ...
    @overload
    def subscribe(
        self, topic: str, group: str, **options: Unpack[typed.TransactionalBatchSubscriberKeywords]
    ) -> Callable[[Callable[[Transaction, list[Message]], Any]], Subscription]: ...
    def subscribe(
        self,
        topic: str,
        group: str | None = None,
        *,
        filter: Filter = EVERYTHING,
        order: str | None = None,
        broadcast: bool = False,
        name: str | None = None,
        **options: Any,
    ) -> Callable[[Function], Subscription]:
        """Declare a handler for every message of a topic: ``function(message)``.

        With ``batch=`` it is called with a list of messages.

        Args:
            topic, group: the topic to read, and the group that reads it; every group gets every message.
            filter: the messages that the group wants; the others are done without a run.
            order: ``"key"``: messages of a partition with the same key run one after another, retries included;
                ``"partition"``: all messages of a partition do. Without it, messages are only claimed in stream order.
            broadcast: instead of a group: every worker process gets every message, from the end of the topic on.
            name: of a broadcast: a stable name, so that a process resumes where its predecessor stopped.
            options: see :class:`HandlerOptions`; a broadcast takes ``concurrency`` and the time limits only.

        Raises:
            ConfigError: an option is unknown or wrong, or the group has a handler already.
        """
        return self.registry.subscriber(topic, group, filter, order, options, broadcast=broadcast, name=name)

    def periodic(
        self,
        cron: str | None = None,
        *,
        every: float | None = None,
        timezone: str = "UTC",
        catch_up: str = "last",
        name: str | None = None,
        **call: Any,
    ) -> Callable[[AnyTask], AnyTask]:
        """Call a task at set times: ``@app.periodic("*/5 * * * *")`` above ``@app.task``.

        Args:
            cron: five fields, or six with the seconds first.
            every: seconds, instead of cron.
            timezone: of cron, an IANA name.
            catch_up: of the slots that passed while no beat was running: the ``last``, ``all`` (at most 1000), or
                ``none``.
            name: of the schedule, by default the task's; unique in a stream.
            call: ``args``, ``kwargs`` and ``key`` of the call.

        Raises:
            ConfigError: the time or the zone is wrong, or the name is taken.
        """

        def declare(task: AnyTask) -> AnyTask:
            self.registry.add_periodic(make_periodic(task, cron, every, timezone, catch_up, name, **call))
            return task

        return declare

    @overload
    def flow(self, function: Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]], /) -> FlowTask[P, R]: ...
    @overload
    def flow(self, function: Callable[Concatenate[Flow, P], R], /) -> FlowTask[P, R]: ...
    @overload
    def flow(self, function: None = None, /, *, version: int = 1, **options: Unpack[TaskKeywords]) -> FlowDecorator: ...
    def flow(
        self, function: Function | None = None, /, *, name: str | None = None, version: int = 1, **options: Any
    ) -> Any:
        """Declare a flow, a function of many steps that ends once: ``@app.flow def checkout(flow, order_id)``.

        Its first argument is the :class:`emsworker.flows.Flow`, in whose words it asks for its steps.

        Args:
            name: by default ``module.function``.
            version: of its code; flows are started with the highest that is declared under the name, and each is run by
                the version with which it began.
            options: as of a task; ``max_attempts`` is 5.

        Raises:
            ConfigError: an option is unknown or wrong, or the name is taken.
        """
        return load(f"{_FLOWS}:declare")(self, function, name, version, options)

    def signal(
        self, id: str, name: str, value: Any = None, *, transaction: Any = None, topic: str | None = None
    ) -> None:
        """Give a flow a signal, which ``flow.wait_for(name)`` returns; one that comes before it is kept.

        Args:
            id: of the flow.
            value: anything with a JSON form.
            transaction: give it with its commit, as in :meth:`send`.
            topic: on which the flow is run, if that is not the app's.

        Raises:
            UnknownFlow: there is no such flow.
            FlowEnded: it has ended.
        """
        load(f"{_FLOWS}:signal")(self, id, name, value, transaction, topic)

    def find_flow(self, id: str, *, topic: str | None = None) -> FlowHandle[Any]:
        """Return a flow by its id, to look at it, wait for it or cancel it.

        Args:
            topic: on which it is run, if that is not the app's.
        """
        found: FlowHandle[Any] = load(f"{_FLOWS}:find")(self, id, topic)
        return found

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message and return after its commit.

        Args:
            topic: created on first use if ``auto_create`` is on.
            body: anything the serializer knows; ``bytes`` and ``str`` are kept as they are.
            transaction: send with its commit: what :meth:`transaction` gives, or a connection of your own.
            options: those of :class:`Outgoing`: ``key`` (messages with the same key share a partition), ``partition``
                (instead of a key), ``tag``, ``headers`` (a dict of strings), ``uid`` (a UUID of your own, which makes
                sends idempotent), ``serializer``, ``compression``, ``countdown`` (seconds before it may be read),
                ``delay`` (the same as text: ``"10m"``) or ``eta`` (a time), ``dedup_key`` (not sent again while the
                message with this key is unfinished, or ``dedup_window``, ``"5m"``, lasts), ``priority`` (0 to 9; higher
                ones are run first, if the topic distinguishes priorities).

        Raises:
            ConfigError: an option is unknown or wrong; nothing was written.
            UnknownTopic, TopicRuleError, MessageTooLarge, EncodeError, InvalidName, InvalidPriority: nothing was
                written.
            PublishTimeout: no confirmation in time; send again with the same ``uid`` to be sure of exactly one.
        """
        return self.publisher.publish(topic, [checked(topic, body, options)], transaction)[0]

    def send_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages in few statements; those of one partition keep their order.

        Args:
            bodies: bodies, or :class:`Outgoing` with options of their own.
            transaction: as in :meth:`send`.
            options: as in :meth:`send`, for all of them; an :class:`Outgoing` has its own, so with any of these only
                the time of the whole send is allowed: ``countdown``, ``delay``, ``eta``.

        Raises:
            as :meth:`send`; every body is checked before the first is sent.
        """
        return self.publisher.publish(topic, checked_many(topic, bodies, options), transaction, many=True)

    def send_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call of a task by its name, which need not be declared here, and return after its commit.

        A task that is declared here is called as by :meth:`Task.apply_async`. Of any other neither the name nor the
        arguments can be checked: a worker that does not know it makes the call a dead letter.

        Args:
            name: as its workers know it.
            args, kwargs: of its function.
            group: that runs it; without it that of the task, or the app's setting.
            options: as in :meth:`Task.apply_async`; without ``topic`` that of the task, or the app's setting.

        Raises:
            UnknownTopic: there is no such topic, and it may not be created. All that :meth:`Task.apply_async` raises,
                besides.
            ConfigError: an option is unknown or wrong, or several tasks here have that name.
        """
        refuse_unknown("send_task()", options, CALLED_WITH)
        task = self.registry.declared_task(check_name("task", name), options.get("topic"), group)
        if task is not None:
            return task.apply_async(args, kwargs, **options)
        transaction, topic = options.pop("transaction", None), options.pop("topic", None) or self.settings.topic
        target = CallTarget(name, topic, check_name("group", group or self.settings.group))
        at = options.pop("expires", None), options.pop("task_id", None)
        call = prepare_call(target, call_body(name, args, kwargs), *at, options, self.server_time)
        return self.publisher.publish(topic, [call], transaction)[0]

    async def asend_task(
        self,
        name: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        **options: Unpack[CallOptions],
    ) -> Receipt[Any]:
        """Send a call by name from a coroutine; see :meth:`send_task`, and :meth:`asend` for a cancellation."""

        def send(transaction: Any) -> Receipt[Any]:
            wanted: CallOptions = {**options, "transaction": transaction}
            return self.send_task(name, args, kwargs, group=group, **wanted)

        task = self.registry.declared_task(name, options.get("topic"), group)
        topic = options.get("topic") or (self.settings.topic if task is None else task.topic)
        return await self.publisher.in_pool(f"a call of {name}", topic, send, options.get("transaction"))

    async def asend(self, topic: str, body: Any, *, transaction: Any = None, **options: Unpack[SendOptions]) -> Receipt:
        """Send one message from a coroutine, and return after its commit; the event loop is never blocked.

        At most ``async_threads`` threads of a process send at once (a setting); other sends wait for their turn. Those
        that wait share the next commit, unless the app has middleware for sends. The arguments and errors are those of
        :meth:`send`.

        If the coroutine is cancelled, by a timeout for example, a send that waits for its turn is dropped, and nothing
        is sent. One that has begun goes on to its end: the message is sent once, and if that fails, a warning is
        logged. To repeat a cancelled send without a second message, give each try the same ``uid``.

        Args:
            transaction: as in :meth:`send`, or an ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy. A send in one
                of these ends with its coroutine, and its transaction decides about the message.
        """
        name = f"a send to {topic}"
        if self.publisher.gathers(transaction):
            return await self.publisher.send_gathered(name, lambda: checked(topic, body, options))
        return await self.publisher.in_pool(
            name, topic, lambda tx: self.send(topic, body, transaction=tx, **options), transaction
        )

    async def asend_many(
        self, topic: str, bodies: Iterable[Any], *, transaction: Any = None, **options: Unpack[SendOptions]
    ) -> list[Receipt]:
        """Send many messages from a coroutine; see :meth:`send_many`, and :meth:`asend` for what a cancellation does.

        Those of one statement are sent together or not at all.
        """
        name = f"a send to {topic}"
        return await self.publisher.in_pool(
            name, topic, lambda tx: self.send_many(topic, bodies, transaction=tx, **options), transaction
        )

    @property
    def pool(self) -> ThreadPool:
        """The threads on which coroutines send: ``await app.pool.run(call)`` runs another call that blocks."""
        return self.broker.pool

    def transaction(self, *, server: str | None = None) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction in the stream's database, for SQL and messages that are committed together.

        ``with app.transaction() as tx:`` commits at its end and rolls back on any exception; see OutboxTransaction.

        Args:
            server: of several servers, the one whose tables the SQL is for; by default the main one, and in a handler
                that on which its message is.

        Raises:
            ConfigError: the setting `servers` names no such server.
            StoreUnavailable: the connection was lost in COMMIT, and it is not known if it was committed.
        """
        return self.broker.transaction(self) if server is None else self.streams.server(server).transaction(self)

    def after_commit(self, sent: Iterable[tuple[Outgoing, Receipt]]) -> None:
        """Call the ``after_publish`` hooks for messages of a transaction that is committed."""
        self.publisher.after_commit(sent)

    def server_time(self, when: float | datetime) -> datetime:
        """Return a time, or a number of seconds from the server's now, as a time in UTC."""
        return in_utc(when) if isinstance(when, datetime) else self.broker.now() + timedelta(seconds=when)

    def cancel(self, message: str | Receipt, topic: str | None = None) -> bool:
        """Cancel a message, so that groups no longer run it.

        One that a worker runs is interrupted within about a second: a coroutine gets CancelledError, a thread
        RunCancelled at its next line, or only the flag ``run.cancelled`` (``on_cancel="flag"``); its transaction is
        rolled back. Its result is ``cancelled`` when nothing of it runs any more. The answer is false if every group
        has finished the message.

        Args:
            message: its id or receipt.
            topic: where it is; without it every topic is searched.

        Raises:
            UnknownMessage: it is in none of these topics.
        """
        if isinstance(message, Receipt):
            return self.broker.cancel(message.id, topic or message.topic)
        return self.broker.cancel(message, topic)

    # -- results and effects -------------------------------------------------------------------------------------------

    @overload
    def result(self, message: Receipt[R], *, group: str | None = None) -> AsyncResult[R]: ...
    @overload
    def result(self, message: str, *, group: str | None = None) -> AsyncResult: ...
    def result(self, message: Receipt[Any] | str, *, group: str | None = None) -> AsyncResult[Any]:
        """The result of a call of a task that keeps results (``@app.task(result=True)``); it is not fetched yet.

        Args:
            message: what sending the call returned, or its ``id``.
            group: the group whose result it is, if several run the task; by default the first to end.
        """
        return self.results([message], group=group)[0]

    @overload
    def results(self, messages: Iterable[Receipt[R]], *, group: str | None = None) -> ResultSet[R]: ...
    @overload
    def results(self, messages: Iterable[Receipt[Any] | str], *, group: str | None = None) -> ResultSet: ...
    def results(self, messages: Iterable[Receipt[Any] | str], *, group: str | None = None) -> ResultSet[Any]:
        """The results of several calls, fetched together; see :meth:`result`.

        An id alone is looked for in all topics that the app has tasks on.
        """
        return results_of(self.broker, [*messages], self.registry.topics, group, self.registry.find_task)

    def once(self, key: str | bytes, *, backend: str = "mysql", **options: Any) -> Once:
        """A guard around an effect: ``with app.once(key) as first: if first: ...``; see :class:`Once`.

        Args:
            key: of the effect.
            backend: where keys are kept, ``mysql`` or ``redis``.
            options: ``ttl_s``, ``running_s``, ``wait_s``, ``if_uncertain``.

        Raises:
            ConfigError: the backend is unknown, there is no Redis, or an option is unknown or wrong.
            InvalidName: the key is empty, too long, or neither text nor bytes.
        """
        return Once.of(self.broker, key, backend, options)

    @property
    def schedules(self) -> AppSchedules:
        """The schedules that users create, change, pause and delete at run time; see :class:`AppSchedules`."""
        return AppSchedules(self)

    # -- where messages are kept ---------------------------------------------------------------------------------------

    @property
    def streams(self) -> Broker:
        """The broker, in memory only within :meth:`test`: it knows the servers, and the topics on each."""
        return self._streams

    @streams.setter
    def streams(self, broker: Broker) -> None:
        self._streams = broker

    @property
    def broker(self) -> Broker:
        """The stream in MySQL; within :meth:`test`, and with the setting ``eager``, one in memory."""
        if self._becomes_eager:
            self.test(eager=True).start()
        return self.streams

    @property
    def stream(self) -> MysqlBroker:
        """The stream in MySQL; of several servers, that on which this process consumes, by default the main one.

        Raises:
            EmsError: the app runs in memory.
        """
        return self.streams.home

    def test(self, **options: Any) -> TestApp:
        """Run the app in memory, without any server; see :class:`emsworker.testing.TestApp`."""
        from emsworker.testing import TestApp  # a worker never needs it

        self._becomes_eager = False
        return TestApp(self, **options)

    def close(self) -> None:
        """Close the connections; the app opens new ones at its next send.

        Sends of coroutines that have begun are waited for, those that wait for their turn are cancelled.
        """
        self.publisher.cancel_waiting()
        self._streams.close()
        self.publisher.cancel_waiting()  # what came meanwhile, whose thread was dropped

    async def aclose(self) -> None:
        """Close the connections from a coroutine; see :meth:`close`."""
        import asyncio  # only a program with coroutines has loaded it

        await asyncio.shield(asyncio.to_thread(self.close))

    def consumer(
        self,
        topic: str,
        group: str,
        *,
        prefetch: int = 100,
        timeout: float | str | None = None,
        idle_timeout: float | str | None = None,
        filter: Filter | None = None,
        order: str | None = None,
    ) -> PullConsumer:
        """Return a consumer of a group's messages, for programs that want messages and not tasks; it is not open yet.

        ``with app.consumer("orders", "billing") as consumer:`` registers a client; its end gives back what was not
        settled.

        Args:
            topic, group: the group; its messages may be run by workers at the same time.
            prefetch: the most messages in hand at once.
            timeout: seconds that a message may be in hand, or text like ``"5m"``; by default the group's timeout.
            idle_timeout: iteration ends if no message has come for that long; by default it goes on.
            filter, order: of a new group, as in :meth:`subscribe`; a group that exists must have the same.

        Raises:
            ConfigError: an argument is wrong, or the app runs in memory.
        """
        with fork_blocked:  # what only sends has no need of it
            from emsworker.consume.pull import PullConsumer

        return PullConsumer(
            self.streams.kept_by(topic),
            self.name,
            topic,
            group,
            prefetch=prefetch,
            timeout=timeout,
            idle_timeout=idle_timeout,
            filter=filter,
            order=order,
        )

    def __repr__(self) -> str:
        return f"<Ems {self.name}>"
