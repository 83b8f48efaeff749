"""App of a Django project: its stream lies in one of the project's databases."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connections

from emsworker.extending.apps import Broker, Ems, Middleware
from emsworker.extending.errors import INTERRUPTIONS
from emsworker.extending.processes import forks, name_address
from emsworker.extending.values import Message, Outcome
from emsworker.integrations.django.address import database_url, fingerprint


class ProjectEms(Ems):
    """An app whose stream is in the database that ``DATABASES`` names at the moment of each use.

    Django's test runner puts another name there after the project's modules have been imported.

    Args:
        name: of the app.
        database: alias of the database; ``None`` if ``url`` says where the stream is.
        middleware: the project's own.
        settings: of :class:`Settings`.

    Attributes:
        follows: the alias of the database that the stream is in; ``None`` if it has an address of its own.

    Raises:
        ConfigError: naming every wrong setting.
    """

    def __init__(
        self, name: str, database: str | None, *, middleware: Iterable[Middleware] = (), **settings: Any
    ) -> None:
        super().__init__(name, middleware=[DatabaseConnections(self), *middleware], **settings)
        self.follows = database if settings.get("url") is None else None
        self._seen: tuple[Any, ...] = ()
        self._lock = forks.Lock()

    def follow(self) -> None:
        """Go to the database that ``DATABASES`` names now, unless the app runs in memory.

        Raises:
            ConfigError: that is not of MySQL or MariaDB.
        """
        if self.follows is None or self.in_memory or (seen := fingerprint(self.follows)) == self._seen:
            return
        with self._lock:
            if seen != self._seen:  # another thread may have been faster, and sends by now
                super().reconfigure(url=database_url(self.follows))
                name_address(f"DATABASES[{self.follows!r}]")
                self._seen = seen

    @property
    def in_memory(self) -> bool:
        """True within :meth:`test`."""
        return self._streams.in_memory

    def reconfigure(self, **changes: Any) -> None:
        """Change settings; with a ``url`` the app no longer follows ``DATABASES``."""
        if changes.get("url") is not None:
            self.follows = None
        super().reconfigure(**changes)

    @property
    def streams(self) -> Broker:
        """The broker, where ``DATABASES`` says."""
        self.follow()
        return self._streams

    @streams.setter
    def streams(self, broker: Broker) -> None:
        self._streams = broker


class DatabaseConnections(Middleware):
    """Closes Django's connections around each run as around a request: those that are broken or too old.

    Args:
        app: in memory it runs its tasks in the transaction of a test, whose connection stays.
    """

    def __init__(self, app: ProjectEms) -> None:
        self._app = app

    def before_run(self, message: Message, group: str) -> None:
        """Close connections that a restart of the server or their age has made unusable."""
        close_old_connections()

    def after_run(
        self, message: Message, group: str, outcome: Outcome, error: BaseException | None, ran_s: float
    ) -> None:
        """Close connections that may not be kept, and all of a run that was interrupted in the middle of a query."""
        if isinstance(error, INTERRUPTIONS) and not self._app.in_memory:
            for connection in connections.all(initialized_only=True):
                connection.close()
                del connections[connection.alias]  # it may think that it is in a transaction still
        close_old_connections()


def close_old_connections() -> None:
    """Close this thread's connections of Django that are broken or too old; one in a transaction is left alone."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
