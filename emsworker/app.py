"""The app: configuration, registry and producer in one object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from emsworker.core.codec import CALL, encode_body, encode_headers
from emsworker.core.config import Settings
from emsworker.core.errors import ConfigError, InvalidName, MessageTooLarge, Problem, TopicRuleError
from emsworker.core.ids import check_name, encode_key, new_uid, parse_uid
from emsworker.core.model import TASK_HEADER, NewMessage, Receipt, Topic, TopicKind, priority_header
from emsworker.core.options import is_whole, refuse_reserved, refuse_unknown
from emsworker.core.priority import check_priority, level_for
from emsworker.core.process.forks import undivided
from emsworker.core.selection.filters import EVERYTHING, Filter
from emsworker.features import Features
from emsworker.opening import Opening
from emsworker.publish.cancel import cancel_sent
from emsworker.publish.delivery import DELIVERY_OPTIONS, DeliveryOptions, read_dedup, split_delivery
from emsworker.store.engine.schema import server_now
from emsworker.tasks.broadcast import Broadcasts, listen
from emsworker.tasks.middleware import Middleware, hooks
from emsworker.tasks.options import HandlerOptions
from emsworker.tasks.task import SENT_WITH, Outgoing, Route, Subscription, Task, check_function, full_name

if TYPE_CHECKING:
    from emsworker.consume.pull import PullConsumer
    from emsworker.publish.outbox import OutboxTransaction

Function = Callable[..., Any]

_SEND_OPTIONS = (SENT_WITH | DELIVERY_OPTIONS) - {"topic"}


class Ems(Features, Opening):
    """An app: the tasks and subscriptions of a program, and the stream that they use.

    Args:
        name: shown in logs and client lists.
        middleware: hooks around publishing and running, in order.
        config: dotted name of a module with settings.
        settings: any setting of :class:`Settings` by name; they win over ``EMS_*`` variables.

    Raises:
        ConfigError: naming every wrong setting.
    """

    def __init__(
        self, name: str = "app", *, middleware: Iterable[Middleware] = (), config: str | None = None, **settings: Any
    ) -> None:
        super().__init__()
        self.name = check_name("app", name)
        self.settings = Settings.load(config, **settings)
        self.middleware = tuple(middleware)
        if wrong := [one for one in self.middleware if not isinstance(one, Middleware)]:
            raise ConfigError([Problem("middleware", repr(wrong[0]), "must be objects of classes below Middleware")])
        self.routes: dict[tuple[str, str], Route] = {}
        self.schedules = {}
        self.broadcasts = Broadcasts()
        self._before_publish = hooks(self.middleware, "before_publish")
        self._after_publish = hooks(self.middleware, "after_publish")

    # -- declaring -----------------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Function, /) -> Task: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        topic: str | None = None,
        group: str | None = None,
        bind: bool = False,
        order: str | None = None,
        **options: Any,
    ) -> Callable[[Function], Task]: ...
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
    ) -> Task | Callable[[Function], Task]:
        """Declare a task: ``@app.task`` or ``@app.task(name=..., bind=True, ...)``.

        Args:
            name: by default ``module.function``.
            topic, group: where its calls go and which group runs them; by default the app's settings.
            bind: give the task its own request as first argument.
            order: of the whole group: ``"key"`` or ``"partition"``, see :meth:`subscribe`.
            options: see :class:`HandlerOptions`.

        Raises:
            ConfigError: an option is unknown or wrong, or the name is taken.
        """

        def declare(function: Function) -> Task:
            check_function("task", function)
            task_name = check_name("task", name or full_name(function))
            route = self._route(topic or self.settings.topic, group or self.settings.group)
            route.declare_order(order)
            task = Task(
                self, function, task_name, self._options(options), topic=route.topic, group=route.group, bind=bind
            )
            if task_name in route.tasks or route.subscription is not None:
                raise ConfigError(
                    [Problem("task", task_name, f"{route.topic}/{route.group} has a handler for it already")]
                )
            route.tasks[task_name] = task
            return task

        return declare if function is None else declare(function)

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
        wanted: Any = filter
        if not isinstance(wanted, Filter):
            raise ConfigError([Problem("filter", repr(wanted), "must be a Filter, like Filter(tags=['new'])")])
        if broadcast:
            return listen(self, topic, group, name, filter, options if order is None else options | {"order": order})
        if group is None or name is not None:
            fix = "name a group, or say broadcast=True (only that has a name=)"
            raise ConfigError([Problem("subscribe", repr(topic), fix)])
        group_name = group

        def declare(function: Function) -> Subscription:
            check_function("subscribe", function)
            route = self._route(topic=topic, group=group_name)
            if route.subscription is not None or route.tasks:
                raise ConfigError(
                    [
                        Problem(
                            "subscribe",
                            f"{topic}/{group_name}",
                            "the group has a handler already; give this one another group",
                        )
                    ]
                )
            route.subscription = Subscription(function, full_name(function), self._options(options))
            route.filter = filter
            route.declare_order(order)
            return route.subscription

        return declare

    def _route(self, topic: str, group: str) -> Route:
        key = (check_name("topic", topic), check_name("group", group))
        self.broadcasts.refuse_group(topic, group)
        return self.routes.setdefault(key, Route(*key))

    def _options(self, options: Mapping[str, Any]) -> HandlerOptions:
        """A handler's options, over the time limits of the app's settings."""
        limits = {name: getattr(self.settings, name) for name in ("soft_time_limit_s", "hard_time_limit_s")}
        return HandlerOptions.checked(limits | dict(options))

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, topic: str, body: Any, **options: Any) -> Receipt:
        """Send one message and return after its commit.

        Args:
            topic: created on first use if ``auto_create`` is on.
            body: anything the serializer knows; ``bytes`` and ``str`` are kept as they are.
            options: ``key`` (messages with the same key share a partition), ``partition`` (instead of a key), ``tag``,
                ``headers`` (a dict of strings), ``uid`` (a UUID of your own, which makes sends idempotent),
                ``serializer``, ``compression``, ``countdown`` (seconds before it may be read), ``delay`` (the same as
                text: ``"10m"``) or ``eta`` (a time), ``transaction`` (send with its commit: what
                :meth:`transaction` gives, or a connection of your own), ``dedup_key`` (not sent again while the
                message with this key is unfinished, or ``dedup_window``, ``"5m"``, lasts), ``priority`` (0 to 9; higher
                ones are run first, if the topic distinguishes priorities).

        Raises:
            ConfigError: an option is unknown or wrong; nothing was written.
            UnknownTopic, TopicRuleError, MessageTooLarge, EncodeError, InvalidName, InvalidPriority: nothing was
                written.
            PublishTimeout: no confirmation in time; send again with the same ``uid`` to be sure of exactly one.
        """
        refuse_unknown("send()", options, _SEND_OPTIONS)
        refuse_reserved(options.get("headers"))
        return self.publish(topic, body, **options)

    def send_many(self, topic: str, bodies: Iterable[Any], **options: Any) -> list[Receipt]:
        """Send many messages in few statements; those of one partition keep their order.

        Args:
            bodies: bodies, or :class:`Outgoing` with options of their own.
            options: as in :meth:`send`, for all of them; an :class:`Outgoing` has its own, so with any of these only
                the options of the whole send are allowed: ``countdown``, ``delay``, ``eta``, ``transaction``.

        Raises:
            as :meth:`send`; every body is checked before the first is sent.
        """
        self.be_eager()
        refuse_unknown("send_many()", options, _SEND_OPTIONS)
        refuse_reserved(options.get("headers"))
        delivery, options = split_delivery(options)
        if isinstance(bodies, str | bytes | Mapping) or not isinstance(bodies, Iterable):
            fix = "must be a list of bodies, or another iterable of them; send() sends a single one"
            raise ConfigError([Problem("bodies", f"a {type(bodies).__name__}", fix)])
        bodies = list(bodies)
        if options and any(isinstance(body, Outgoing) for body in bodies):
            fix = "an Outgoing has options of its own, and these would not reach it; give them to each Outgoing"
            raise ConfigError([Problem(name, repr(value), fix) for name, value in options.items()])
        outgoing = [body if isinstance(body, Outgoing) else Outgoing(topic, body, **options) for body in bodies]
        for item in outgoing:
            refuse_reserved(item.headers)
            if item.topic != topic:
                raise InvalidName(f"send_many to topic {topic!r} was given a message for {item.topic!r}; send it apart")
        return self._deliver(topic, outgoing, delivery)

    def publish(self, topic: str, body: Any, **options: Any) -> Receipt:
        """Send one message whose headers may be reserved; shared by :meth:`send` and :meth:`Task.apply_async`."""
        self.be_eager()
        delivery, options = split_delivery(options)
        return self._deliver(topic, [Outgoing(topic, body, **options)], delivery)[0]

    def _deliver(self, name: str, outgoing: list[Outgoing], delivery: DeliveryOptions) -> list[Receipt]:
        # Mistakes of the caller are refused before the catalog may create the topic.
        messages = [self._encode(item) for item in outgoing]
        write = partial(self._write, outgoing=outgoing, messages=messages, delivery=delivery)
        receipts = self.catalog.use(check_name("topic", name), write)
        if delivery.transaction is None:
            self.tell(outgoing, receipts)
        return receipts

    def _write(
        self, topic: Topic, *, outgoing: list[Outgoing], messages: list[NewMessage], delivery: DeliveryOptions
    ) -> list[Receipt]:
        for item, message in zip(outgoing, messages, strict=True):
            self._admit(topic, item, message)
        if delivery.direct and all(item.dedup_key is None for item in outgoing):
            return self.producer.send(topic, messages)
        return self.outbox.send(topic, outgoing, messages, delivery)

    def transaction(self) -> AbstractContextManager[OutboxTransaction]:
        """Return a transaction in the stream's database, for SQL and messages that are committed together.

        ``with app.transaction() as tx:`` commits at its end and rolls back on any exception; see OutboxTransaction.

        Raises:
            StoreUnavailable: the connection was lost in COMMIT, and it is not known if it was committed.
        """
        return self.outbox.transaction()

    def tell(self, outgoing: Iterable[Outgoing], receipts: Iterable[Receipt]) -> None:
        """Call the ``after_publish`` hooks of the middleware for committed messages."""
        for item, receipt in zip(outgoing, receipts, strict=True):
            for hook in self._after_publish:
                hook(item, receipt)

    def _encode(self, outgoing: Outgoing) -> NewMessage:
        """Encode a message as it is stored, independently of its topic."""
        for hook in self._before_publish:
            hook(outgoing)
        if not self.settings.publishing:
            raise TopicRuleError("publishing is switched off here (setting 'publishing'); nothing was sent")
        body, codec_headers = encode_body(
            outgoing.body,
            outgoing.serializer or self.settings.serializer,
            outgoing.compression or self.settings.compression,
            names=CALL if TASK_HEADER in outgoing.headers else (),
        )
        check_priority(outgoing.priority)
        headers = encode_headers({**codec_headers, **outgoing.headers, **priority_header(outgoing.priority)})
        uid = new_uid() if outgoing.uid is None else parse_uid(outgoing.uid)
        key, tag = encode_key("key", outgoing.key), encode_key("tag", outgoing.tag)
        read_dedup(outgoing.dedup_key, outgoing.dedup_window)
        if outgoing.partition is not None and not is_whole(outgoing.partition):
            raise InvalidName(f"partition {outgoing.partition!r:.100} is none: it must be a whole number")
        return NewMessage(uid, key, tag, headers, body, outgoing.partition)

    def _admit(self, topic: Topic, outgoing: Outgoing, message: NewMessage) -> None:
        """Check that the topic takes a message, and set its level of priority."""
        if not topic.rule.writable:
            raise TopicRuleError(
                f"topic {topic.name!r} has the rule {topic.rule.value!r}; nothing was sent "
                "(`ems topics change` sets the rule)"
            )
        if topic.kind is TopicKind.BROADCAST and TASK_HEADER in outgoing.headers:
            raise TopicRuleError(
                f"topic {topic.name!r} is a broadcast topic, and tasks are run by groups; nothing was sent "
                "(send it a plain message, or the task to another topic)"
            )
        if outgoing.partition is not None and outgoing.partition not in range(topic.partitions):
            raise InvalidName(
                f"partition {outgoing.partition!r} of topic {topic.name!r} does not exist; "
                f"it has 0 to {topic.partitions - 1}"
            )
        if len(message.body) > topic.max_message_bytes:
            raise MessageTooLarge(
                f"a body of {len(message.body)} bytes is over the limit of topic {topic.name!r}, "
                f"{topic.max_message_bytes} bytes; nothing was sent"
            )
        message.level = level_for(topic.name, topic.priorities, outgoing.priority)

    def server_time(self, when: float | datetime) -> datetime:
        """Return a time, or a number of seconds from the server's now, as a time in UTC."""
        if isinstance(when, datetime):
            return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
        now = self.database.call(server_now) if self.stand_in is None else self.stand_in.now
        return now + timedelta(seconds=when)

    def cancel(self, message: str | Receipt, topic: str | None = None) -> bool:
        """Cancel a message that was not run yet, so that groups no longer run it.

        Attempts that have begun go on, and a worker that has read the message may still begin one. The answer is
        false if every group has finished it.

        Args:
            message: its id or receipt.
            topic: where it is; without it every topic is searched.

        Raises:
            UnknownMessage: it is in none of these topics.
        """
        if self.stand_in is not None:
            return self.stand_in.cancel(message, topic)
        return cancel_sent(self.database, message, topic)

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
        if self.stand_in is not None:
            raise ConfigError([Problem("consumer", f"{topic}/{group}", "an app in memory has no stream to pull from")])
        with undivided:  # what only sends has no need of it
            from emsworker.consume.pull import PullConsumer

        return PullConsumer(
            self,
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
