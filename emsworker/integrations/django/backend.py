"""Backend of Django's task framework."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils import timezone
from django.utils.module_loading import import_string

from emsworker.extending.apps import Middleware, Task
from emsworker.extending.errors import ConfigError, EmsError, InvalidName, Problem, text_of
from emsworker.extending.processes import forks
from emsworker.extending.values import TASK_HEADER, Message, check_name, new_uid, uid_text
from emsworker.integrations.django.address import database_url
from emsworker.integrations.django.app import ProjectEms
from emsworker.integrations.django.declared import finish, options_of, runner, running
from emsworker.integrations.django.framework import (
    BaseTaskBackend,
    TaskResult,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from emsworker.integrations.django.lookup import find_result

_PRIORITIES = 3  # levels of topics that are created on first use: below, at and above Django's default
_KEEP_DONE_S = 86400.0  # a result, which is kept for a day, is looked up by its call
_OWN = ("database", "modules", "middleware")


class EmsBackend(BaseTaskBackend):  # type: ignore[misc]
    """Backend of Django's tasks that keeps them in a stream: ``"BACKEND": "emsworker.django.EmsBackend"``.

    A queue is a topic of the same name. A call that is enqueued inside of ``transaction.atomic()`` is committed and
    rolled back with it. ``OPTIONS`` holds settings of EMS by name, and these:

    - ``database``: alias in ``DATABASES`` of the stream's database, ``"default"``; ``None`` with a ``url`` of another
      server, and then calls are sent at once, whatever transaction is open.
    - ``modules``: modules that a worker imports besides every app's ``tasks``.
    - ``middleware``: dotted names of middleware classes or objects.

    Args:
        alias: the name in ``TASKS``.
        params: its entry there.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.database: str | None = self.options.get("database", "default")
        self.modules: tuple[str, ...] = tuple(self.options.get("modules", ()))
        with _lock:  # Django makes a backend for each thread
            key = (alias, id(params))
            if key not in _shared:
                _shared[key] = _Shared(params, type(self), self.database, self.options)
            self._shared = _shared[key]

    @property
    def address_name(self) -> str:
        """The setting of the project that the stream's address comes from."""
        follows = self.app.follows
        return f"TASKS[{self.alias!r}]['OPTIONS']['url']" if follows is None else f"DATABASES[{follows!r}]"

    @property
    def is_configured(self) -> bool:
        """True if no option is wrong."""
        return self._shared.app is not None

    @property
    def app(self) -> ProjectEms:
        """The app with the tasks of this backend.

        Raises:
            ImproperlyConfigured: an option is wrong.
        """
        if self._shared.app is None:
            wrong = "; ".join(map(str, self._shared.problems))
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]['OPTIONS']: {wrong}")
        return self._shared.app

    # -- declaring -----------------------------------------------------------------------------------------------------

    def validate_task(self, task: Any) -> None:
        """Check a task when it is made, and declare it to the app.

        Raises:
            InvalidTask: the task cannot be run by this backend.
        """
        super().validate_task(task)
        if self._shared.app is not None:
            self._declare(task)

    def _declare(self, task: Any) -> Task:
        """Return the app's task for a task of Django on its queue, declared at its first use."""
        path = task.module_path
        if (task.queue_name, path) not in self._shared.handlers:
            with self._shared.lock:
                self._shared.tasks.setdefault(path, task)
                for queue in self.queues or {task.queue_name}:
                    if (queue, path) not in self._shared.handlers:
                        declare = self.app.task(name=path, topic=queue, bind=True, **options_of(task.func))
                        self._shared.handlers[queue, path] = declare(runner(task, type(self)))
        return self._shared.handlers[task.queue_name, path]

    def task_named(self, path: str) -> Any:
        """Return the task of a module path.

        Raises:
            LookupError: there is none in this project.
        """
        if path not in self._shared.tasks and self._is_of_project(path):
            with suppress(ImportError):
                import_string(path)  # tasks are declared when their module is imported
        if path not in self._shared.tasks:
            raise LookupError(f"the backend {self.alias!r} of this project has no task {path!r}")
        return self._shared.tasks[path]

    def _is_of_project(self, path: str) -> bool:
        """Return whether a module may be imported because a message names it."""
        names = [*(config.name for config in apps.get_app_configs()), *self.modules]
        return any(path.startswith(f"{name}.") for name in names)

    # -- sending -------------------------------------------------------------------------------------------------------

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Send a call; inside of ``atomic()`` it is part of the transaction.

        Raises:
            InvalidTask: the task cannot be run by this backend.
            WrongArguments: its function does not take these arguments.
            TypeError: an argument has no JSON form.
            EmsError: all that :meth:`emsworker.Task.apply_async` raises; nothing was sent.
        """
        self.validate_task(task)
        result = self._result(task, uid_text(new_uid()), args, kwargs)
        self.app.follow()
        self._declare(task).apply_async(
            result.args,
            result.kwargs,
            eta=_run_after(task),
            task_id=result.id,
            priority=self._priority(task),
            transaction=self._transaction(),
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def enqueue_many(self, task: Any, calls: Iterable[Any]) -> list[Any]:
        """Send many calls of a task; see :func:`enqueue_many`."""
        self.validate_task(task)
        given = calls if isinstance(calls, str | bytes | Mapping) else [*calls]  # delay_many refuses what is no list
        self.app.follow()
        receipts = self._declare(task).delay_many(
            given,
            eta=_run_after(task),
            priority=self._priority(task),
            transaction=self._transaction(),
        )
        results = [self._result(task, one.id, *_arguments(call)) for one, call in zip(receipts, given, strict=True)]
        for result in results:
            task_enqueued.send(type(self), task_result=result)
        return results

    def _result(self, task: Any, result_id: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a call that is sent now."""
        return TaskResult(
            task=task,
            id=result_id,
            status=TaskResultStatus.READY,
            enqueued_at=timezone.now(),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _transaction(self) -> Any:
        """Return Django's connection if what is sent now belongs to its transaction."""
        if self.database is None or self.app.in_memory:
            return None
        connection = connections[self.database]
        by_hand = connection.connection is not None and not connection.autocommit
        manual = by_hand or not connection.settings_dict["AUTOCOMMIT"]
        return connection if connection.in_atomic_block or manual else None

    def _priority(self, task: Any) -> int | None:
        """Return the priority of EMS; none for Django's default in a topic that does not tell priorities apart."""
        if task.priority == 0 and self.app.broker.topic(task.queue_name).priorities == 1:
            return None
        return priority_of(task.priority)

    # -- results -------------------------------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> Any:
        """Return the state, the attempts and the value of a call.

        The user of the database needs the privileges of the role reader for it, besides those of a producer.

        Raises:
            TaskResultDoesNotExist: it was never sent, is not committed, or has expired.
        """
        self.app.follow()
        return find_result(self, result_id)

    # -- checks --------------------------------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Check the entry of ``TASKS``, without connecting."""
        place = f"TASKS[{self.alias!r}]"
        for problem in self._shared.problems:
            yield checks.Error(f"{place}['OPTIONS']: {problem}", id="ems.E001")
        for queue in sorted(map(str, self.queues)):
            try:
                check_name("queue", queue)
            except InvalidName as error:
                yield checks.Error(f"{place}['QUEUES']: {error}", hint="A queue is a topic.", id="ems.E002")
        if self._shared.app is not None and self._shared.app.follows is not None:
            try:
                database_url(self._shared.app.follows)
            except (ConfigError, ImproperlyConfigured) as error:
                yield checks.Error(f"{place}['OPTIONS']: {error}", id="ems.E003")
        if not self.queues:
            hint = "A worker consumes the queues that tasks declare; name in QUEUES those of Task.using(), too."
            yield checks.Warning(f"{place}['QUEUES'] is empty", hint=hint, id="ems.W001")


class _Shared:
    """Shared by all backends of an entry of ``TASKS``: one app in a process, and its tasks.

    Args:
        params: the entry; kept, so that no other entry gets its place in memory.
        sender: of Django's signals.
        database: alias in ``DATABASES``, or ``None``.
        options: the entry's ``OPTIONS``.

    Attributes:
        app: ``None`` if an option is wrong.
        problems: what is wrong.
        tasks: Django's, by module path.
        handlers: the app's, by queue and module path.
    """

    def __init__(self, params: Any, sender: type, database: str | None, options: Mapping[str, Any]) -> None:
        self._params = params
        self.lock = forks.Lock()
        self.tasks: dict[str, Any] = {}
        self.handlers: dict[tuple[str, str], Task] = {}
        self.app: ProjectEms | None = None
        self.problems: list[Problem] = []
        given = {"priorities": _PRIORITIES, "keep_done_s": options.get("result_ttl_s", _KEEP_DONE_S)}
        given |= {name: value for name, value in options.items() if name not in _OWN}
        try:
            middleware = [_Ends(self.tasks, sender), *(_made(one) for one in options.get("middleware", ()))]
            self.app = ProjectEms(_project(), database, middleware=middleware, **given)
        except ConfigError as error:  # reported by `manage.py check`, and at the first use
            self.problems = list(error.problems)


_lock = forks.Lock()
_shared: dict[tuple[str, int], _Shared] = {}


class _Ends(Middleware):
    """Sends Django's signal for calls that have failed for good."""

    def __init__(self, tasks: Mapping[str, Any], sender: type) -> None:
        self._tasks, self._sender = tasks, sender

    def on_dead(self, message: Message, group: str, error: BaseException, reason: str) -> None:
        """Send ``task_finished``."""
        task = self._tasks.get(message.headers.get(TASK_HEADER, ""))
        if task is not None:
            args, kwargs = message.body
            finish(running(task, message, args, kwargs), TaskResultStatus.FAILED, self._sender)


def priority_of(priority: int) -> int:
    """Return the priority of EMS, 0 to 9, for one of Django, -100 to 100; Django's default, 0, becomes 5.

    Every negative one is below 4 and every positive one above 6, so that three levels tell them apart.
    """
    if priority < 0:
        return (priority + 100) * 4 // 100
    return 5 if priority == 0 else 7 + (priority - 1) * 3 // 100


def _run_after(task: Any) -> Any:
    """Return the time before which a task is not to be run, with its zone."""
    naive = task.run_after is not None and timezone.is_naive(task.run_after)
    return timezone.make_aware(task.run_after) if naive else task.run_after


def _arguments(call: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and the named arguments of one of many calls."""
    if isinstance(call, Mapping):
        return [], dict(call)
    return list(call) if isinstance(call, list | tuple) else [call], {}


def enqueue_many(task: Any, calls: Iterable[Any]) -> list[Any]:
    """Send many calls of a task in one commit; inside of ``atomic()`` they are part of the transaction.

    Args:
        task: a task of Django whose backend is EMS.
        calls: each is a tuple or list of arguments, a dict of keyword arguments, or, for a task of one argument, that
            argument.

    Returns:
        the result of each, as of ``task.enqueue()``.

    Raises:
        ImproperlyConfigured: the task has another backend.
        EmsError: all that :meth:`emsworker.Task.delay_many` raises; nothing was sent.
    """
    return get_backend(task.backend).enqueue_many(task, calls)


def backends() -> list[EmsBackend]:
    """Return the project's backends of EMS."""
    return [one for one in task_backends.all() if isinstance(one, EmsBackend)]


def get_backend(alias: str) -> EmsBackend:
    """Return a backend of EMS by its name in ``TASKS``.

    Raises:
        ImproperlyConfigured: there is none of that name.
    """
    known = {one.alias: one for one in backends()}
    if alias not in known:
        names = ", ".join(map(repr, known)) or "none"
        raise ImproperlyConfigured(f"TASKS has no backend of emsworker.django named {alias!r}; it has: {names}")
    return known[alias]


def get_app(alias: str = "default") -> ProjectEms:
    """Return the app of a backend: for topics, subscriptions, and all else that Django's tasks do not have.

    Args:
        alias: the name in ``TASKS``.

    Raises:
        ImproperlyConfigured: there is no backend of that name, or its options are wrong.
    """
    return get_backend(alias).app


def _made(one: Any) -> Middleware:
    try:
        found = import_string(one) if isinstance(one, str) else one
        made: Middleware = found() if isinstance(found, type) else found
    except ImportError as error:
        raise ConfigError([Problem("middleware", repr(one), f"it cannot be imported: {text_of(error)}")]) from None
    return made


def _project() -> str:
    """Return the name of the project, for lists of clients."""
    module = os.environ.get("DJANGO_SETTINGS_MODULE") or getattr(settings, "ROOT_URLCONF", None) or "django"
    try:
        return check_name("app", module.partition(".")[0])
    except EmsError:
        return "django"
