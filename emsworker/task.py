"""What users declare: tasks and subscriptions, and how a message finds its handler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NoReturn

from emsworker.core.durations import LONGEST_S
from emsworker.core.errors import ConfigError, DecodeError, EncodeError, Ignore, Problem, Reject, Retry, UnknownTask
from emsworker.core.filters import EVERYTHING, Filter
from emsworker.core.ladder import Dead, Decision, Done, Ladder
from emsworker.core.limits import Limit
from emsworker.core.model import EXPIRES_HEADER, TASK_HEADER, Message, Order, Receipt
from emsworker.core.priority import PRIORITIES
from emsworker.core.run import UNWATCHED, Run

if TYPE_CHECKING:
    from emsworker.app import Ems

ON_ERROR = ("retry", "dead", "ignore")


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= 65535


@dataclass(frozen=True)
class HandlerOptions:
    """How a handler is run.

    Args:
        transactional: it gets an open transaction as its first argument; what it does there and the message's being
            done are committed together.
        batch: up to how many messages one call gets, as a list; 0 for one by one.
        concurrency: of an ``async def`` handler: how many of its messages a consumer thread has running at once.
        on_error: what an exception means: ``retry`` (the ladder, then a dead letter), ``dead`` (a dead letter at once)
            or ``ignore`` (done).
        ladder: delays between attempts, instead of the group's.
        max_attempts: runs in all, instead of the group's.
        timeout_s: seconds that a message may run before it is moved to retry, instead of the group's.
        soft_time_limit_s: seconds after which SoftTimeLimitExceeded is raised in the handler.
        hard_time_limit_s: seconds after which the process is replaced and the message moved to retry.
        result: keep what it returns, or the error that it ended with, for :meth:`Ems.result`.
        result_ttl_s: for how many seconds, instead of the app's setting; naming it asks for results too.
        rate_limit: of the whole group, on all machines: how many messages may be started, ``100/s``, ``30/m``, ``5/h``.
        max_running: of the whole group, on all machines: how many messages may run at once.
        priority: of a task's calls that name none, 0 to 9; higher ones are run first.
    """

    transactional: bool = False
    batch: int = 0
    concurrency: int = 100
    on_error: str = "retry"
    ladder: str | None = None
    max_attempts: int | None = None
    timeout_s: float | None = None
    soft_time_limit_s: float | None = None
    hard_time_limit_s: float | None = None
    result: bool = False
    result_ttl_s: float | None = None
    rate_limit: str | None = None
    max_running: int | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        problems = [*self._wrong_numbers()]
        if self.on_error not in ON_ERROR:
            problems.append(Problem("on_error", repr(self.on_error), f"must be one of {', '.join(ON_ERROR)}"))
        if self.keeps_result and self.batch:
            problems.append(Problem("result", repr(self.result), "a batch handler has no result for each message"))
        try:
            if self.ladder is not None:
                Ladder.parse(self.ladder)
        except ValueError as error:
            problems.append(Problem("ladder", repr(self.ladder), str(error)))
        try:
            Limit(self.rate_limit, self.max_running)
        except ValueError as error:
            problems.append(Problem("rate_limit, max_running", f"{self.rate_limit}, {self.max_running}", str(error)))
        if problems:
            raise ConfigError(problems)

    def _wrong_numbers(self) -> Iterator[Problem]:
        if not _is_count(self.batch, 0):
            yield Problem("batch", repr(self.batch), "must be a number of messages, 0 for one by one")
        if self.priority is not None and (not _is_count(self.priority, 0) or self.priority not in PRIORITIES):
            yield Problem("priority", repr(self.priority), "must be a number from 0 to 9, the highest")
        for name in ("concurrency", "max_attempts"):
            value = getattr(self, name)
            if value is not None and not _is_count(value, 1):
                yield Problem(name, repr(value), "must be a number from 1 to 65535")
        for name in ("timeout_s", "soft_time_limit_s", "hard_time_limit_s", "result_ttl_s"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and 0 < value <= LONGEST_S):
                yield Problem(name, repr(value), "must be a number of seconds above 0")

    @classmethod
    def checked(cls, options: Mapping[str, Any]) -> HandlerOptions:
        """Options as a user names them.

        Raises:
            ConfigError: one is unknown or wrong.
        """
        known = cls.__dataclass_fields__
        unknown = sorted(set(options) - set(known))
        if unknown:
            mend = f"there is no such option; known are {', '.join(known)}"
            raise ConfigError([Problem(name, repr(options[name]), mend) for name in unknown])
        return cls(**options)

    @property
    def limit(self) -> Limit:
        """What its group is held to."""
        return Limit(self.rate_limit, self.max_running)

    @property
    def keeps_result(self) -> bool:
        """Whether somebody asked for results."""
        return self.result or self.result_ttl_s is not None

    def ladder_over(self, group: Ladder) -> Ladder:
        """The group's ladder with this handler's own settings put over it."""
        if self.ladder is None and self.max_attempts is None:
            return group
        return Ladder.parse(self.ladder or group.delays_s, self.max_attempts or group.max_attempts, group.jitter)

    def decide(self, group: Ladder, attempt: int, error: BaseException) -> Decision:
        """What becomes of a message whose run ended in ``error``; what a handler asked for by name is always done."""
        asked_for = isinstance(error, (Retry, Reject, Ignore))
        if self.on_error == "dead" and not asked_for:
            return Dead(f"{type(error).__name__}: {error}")
        if self.on_error == "ignore" and not asked_for:
            return Done()
        return self.ladder_over(group).next(attempt, error)


@dataclass(slots=True)
class Outgoing:
    """A message before it is encoded; middleware may still change it.

    Args:
        key: messages with the same key share a partition.
        partition: instead of a key.
        tag: one short word that groups can filter by.
        headers: text by text.
        uid: a UUID of the caller's own; a second message with it is not written.
        serializer, compression: instead of the app's.
        dedup_key: of all messages of the topic with the same one, only the first is written while it is not finished
            in every group, or its window lasts.
        dedup_window: that window, as seconds or text (``"5m"``).
        priority: 0 to 9; higher ones are run first, if the topic tells priorities apart.
    """

    topic: str
    body: Any
    key: str | bytes | None = None
    partition: int | None = None
    tag: str | bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    uid: str | None = None
    serializer: str | None = None
    compression: str | None = None
    dedup_key: str | bytes | None = None
    dedup_window: str | float = "5m"
    priority: int | None = None

    def __post_init__(self) -> None:
        if self.headers is not None and not isinstance(self.headers, Mapping):
            raise EncodeError(f"headers = {self.headers!r}: they must be a dict of str by str")
        self.headers = dict(self.headers or {})  # middleware writes here, not into the caller's own


class Handler:
    """A function that messages are given to."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = iscoroutinefunction(function)
        if self.is_async and (options.transactional or options.batch):
            mend = "an async def handler has neither transactional nor batch; leave out async, or use concurrency"
            raise ConfigError([Problem("task", name, mend)])

    @property
    def together(self) -> int:
        """How many neighbouring messages are run together; 0 for one by one."""
        return self.options.concurrency if self.is_async else self.options.batch

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run it for one message; ``transaction`` is given to transactional handlers only."""
        raise NotImplementedError

    def call_batch(self, messages: Sequence[Message], transaction: Any = None) -> Any:
        """Run it for several messages at once."""
        first = () if transaction is None else (transaction,)
        return self.function(*first, messages)


class Subscription(Handler):
    """A handler for every message of a topic, in a group of its own: ``function(message)``."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        super().__init__(function, name, options)
        if options.priority is not None:
            mend = "a subscription sends nothing; give the priority when you send"
            raise ConfigError([Problem("priority", str(options.priority), mend)])

    def call(self, message: Message, transaction: Any = None) -> Any:
        """See :class:`Handler`."""
        if transaction is None:
            return self.function(message)
        return self.function(transaction, message)


@dataclass(frozen=True, slots=True)
class Request:
    """What a bound task knows of its message.

    Args:
        attempt: 1 for the first run.
        offset, partition, topic: the message's place.
        run: its present run; what it offers is here too.
    """

    id: str
    task: str
    attempt: int
    topic: str
    partition: int
    offset: int
    group: str
    key: bytes | None
    headers: Mapping[str, str]
    run: Run = UNWATCHED

    @property
    def time_left(self) -> float:
        """Seconds until the first of its limits; see :attr:`Run.time_left`."""
        return self.run.time_left

    def extend(self, seconds: float) -> None:
        """Ask for at least so many seconds from now; see :meth:`Run.extend`."""
        self.run.extend(seconds)

    def report_progress(self, fraction: float | None = None, text: str = "") -> None:
        """Tell how far it has come; see :meth:`Run.report_progress`."""
        self.run.report_progress(fraction, text)


@dataclass(frozen=True, slots=True)
class BoundTask:
    """``self`` of a task declared with ``bind=True``."""

    task: Task
    request: Request

    @property
    def app(self) -> Ems:
        """The task's app."""
        return self.task.app

    def retry(self, reason: str = "", *, countdown: float | None = None) -> NoReturn:
        """Give up this attempt and run again later.

        Args:
            countdown: seconds until then; without it the ladder decides.
        """
        raise Retry(reason, countdown=countdown)


class Task(Handler):
    """A function that can be called now (``task(2, 3)``) or sent to be run by a worker (``task.delay(2, 3)``)."""

    def __init__(
        self,
        app: Ems,
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

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function here and now, without the stream."""
        return self.function(*args, **kwargs)

    def call(self, message: Message, transaction: Any = None) -> Any:
        """See :class:`Handler`."""
        try:
            args, kwargs = message.body
        except (TypeError, ValueError):
            raise DecodeError(f"the body of {message.id} is no call of a task: it must be [args, kwargs]") from None
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

    def delay(self, *args: Any, **kwargs: Any) -> Receipt:
        """Send a call to the stream; returns after its commit."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        countdown: float | None = None,
        eta: datetime | None = None,
        expires: float | datetime | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> Receipt:
        """Send a call to the stream.

        Args:
            args, kwargs: of the function.
            countdown: seconds to wait before it may run.
            eta: the time before which it must not run; without a zone it is UTC.
            expires: seconds from now, or a time, after which it is not run any more.
            task_id: a UUID of your own; a second call with the same one in the topic is not sent again.
            options: ``topic``, ``key``, ``partition``, ``tag``, ``headers``, ``serializer``, ``compression``,
                ``delay``, ``transaction``, ``dedup_key``, ``dedup_window``, ``priority`` (by default the task's) as in
                :meth:`Ems.send`.

        Raises:
            EncodeError: an argument cannot be serialized; nothing was sent.
        """
        headers = {**options.pop("headers", {}), TASK_HEADER: self.name}
        if expires is not None:
            headers[EXPIRES_HEADER] = self.app.server_time(expires).isoformat()
        options.setdefault("priority", self.options.priority)
        topic = options.pop("topic", None) or self.topic
        body = [list(args), dict(kwargs or {})]
        return self.app.publish(topic, body, headers=headers, uid=task_id, countdown=countdown, eta=eta, **options)

    def cancel(self, call: str | Receipt) -> bool:
        """Cancel a call of this task that was not run yet; see :meth:`Ems.cancel`."""
        return self.app.cancel(call, None if isinstance(call, Receipt) else self.topic)

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.app.name}>"


@dataclass
class Route:
    """The handlers of one group on one topic: its tasks by name, or one subscription for everything."""

    topic: str
    group: str
    tasks: dict[str, Task] = field(default_factory=dict)
    subscription: Subscription | None = None
    filter: Filter = EVERYTHING
    order: Order = Order.NONE

    def declare_order(self, wanted: str | None) -> None:
        """What of the group runs one after another, as a handler asks for it.

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
            mend = f"another handler of {self.topic}/{self.group} asks for {str(self.order)!r}; a group has one order"
            raise ConfigError([Problem("order", repr(wanted), mend)])
        self.order = Order(wanted)

    def check_order(self, order: Order) -> None:
        """Refuse handlers that cannot keep the group's order.

        Raises:
            ConfigError: one takes several messages in a call.
        """
        for handler in self.handlers:
            if order is not Order.NONE and handler.options.batch:
                mend = f"group {self.group!r} runs in order ({order}), one message at a time: leave out batch"
                raise ConfigError([Problem(handler.name, f"batch={handler.options.batch}", mend)])

    @property
    def handlers(self) -> list[Handler]:
        """All of them."""
        return [*self.tasks.values(), *([self.subscription] if self.subscription is not None else [])]

    @property
    def concurrency(self) -> int:
        """The most messages that an async handler of it may have running at once; 0 if there is none."""
        return max((handler.together for handler in self.handlers if handler.is_async), default=0)

    @property
    def at_once(self) -> bool:
        """Whether a thread may run several of its messages at once."""
        return any(handler.together for handler in self.handlers)

    def resolve(self, message: Message) -> Handler:
        """The handler of a message.

        Raises:
            UnknownTask: no task of that name is known here.
            DecodeError: its headers are damaged.
        """
        if self.subscription is not None:
            return self.subscription
        name = message.headers.get(TASK_HEADER)
        task = self.tasks.get(name) if name is not None else None
        if task is None:
            what = f"task {name!r} is not known to this worker" if name else "the message names no task"
            raise UnknownTask(f"{what}; known in {self.topic}/{self.group}: {', '.join(sorted(self.tasks)) or 'none'}")
        return task
