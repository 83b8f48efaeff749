"""Features of an app besides declaring and sending: results, periodic tasks, guards, and runs in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Receipt
from emsworker.core.process.forks import lazy
from emsworker.standin import StandIn
from emsworker.tasks.broadcast import Broadcasts
from emsworker.tasks.idempotency import Once, RedisKeys, guard
from emsworker.tasks.periodic import Periodic, make_periodic
from emsworker.tasks.results import AsyncResult, ResultSet

if TYPE_CHECKING:
    from emsworker.app import Ems
    from emsworker.tasks.task import Task


class Features:
    """A part of :class:`Ems`, in a file of its own."""

    schedules: dict[str, Periodic]
    broadcasts: Broadcasts
    stand_in: StandIn | None = None  # instead of a stream, in tests

    @property
    def _app(self) -> Ems:
        return cast("Ems", self)

    def test(self, **options: Any) -> StandIn:
        """Run the app in memory, without any server; see :class:`emsworker.testing.TestApp`."""
        # By name: it runs tasks with the runtime, which is a layer above the app.
        made: StandIn = import_module("emsworker.testing").TestApp(self._app, **options)
        return made

    def periodic(
        self,
        cron: str | None = None,
        *,
        every: float | None = None,
        timezone: str = "UTC",
        catch_up: str = "last",
        name: str | None = None,
        **call: Any,
    ) -> Callable[[Task], Task]:
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

        def declare(task: Task) -> Task:
            periodic = make_periodic(task, cron, every, timezone, catch_up, name, **call)
            if periodic.name in self.schedules:
                raise ConfigError([Problem("schedule", periodic.name, "the name is taken; give this one a name=")])
            self.schedules[periodic.name] = periodic
            return task

        return declare

    def result(self, message: Receipt | str, *, group: str | None = None) -> AsyncResult:
        """The result of a call of a task that keeps results (``@app.task(result=True)``); it is not fetched yet.

        Args:
            message: what sending the call returned, or its ``id``.
            group: the group whose result it is, if several run the task; by default the first to end.
        """
        return self.results([message], group=group)[0]

    def results(self, messages: Iterable[Receipt | str], *, group: str | None = None) -> ResultSet:
        """The results of several calls, fetched together; see :meth:`result`."""
        return ResultSet.of(self._app, messages, group)

    def once(self, key: str | bytes, *, backend: str = "mysql", **options: Any) -> Once:
        """A guard around an effect: ``with app.once(key) as first: if first: ...``; see :class:`Once`.

        Args:
            key: of the effect.
            backend: where keys are kept, ``mysql`` or ``redis``.
            options: ``ttl_s``, ``running_s``, ``wait_s``, ``if_uncertain``.
        """
        return guard(self._app, key, backend, **options)

    @lazy
    def once_keys(self) -> RedisKeys:
        """The keys of :meth:`once` that are in Redis."""
        assert self._app.redis_url is not None, "checked by once"
        return RedisKeys(self._app.redis_url, self._app.stream_id)

    def be_eager(self) -> None:
        """Run in memory from now on, if the setting ``eager`` is on."""
        if self._app.settings.eager and self.stand_in is None:
            self.test(eager=True).start()
