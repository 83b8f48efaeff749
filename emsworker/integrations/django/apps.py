"""Django's configuration of the app."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate

from emsworker.core.errors import EmsError
from emsworker.integrations.django.backend import EmsBackend, backends


class EmsConfig(AppConfig):  # type: ignore[misc]
    """The app ``emsworker``: its commands, its checks, and the tables of the stream."""

    name = "emsworker.integrations.django"
    label = "emsworker"
    verbose_name = "EMS"

    def ready(self) -> None:
        """Register the check, and let ``manage.py migrate`` create the tables, in a test's database too."""
        checks.register(check_tables, checks.Tags.database)
        post_migrate.connect(_migrate, sender=self)


def _migrate(using: str, verbosity: int = 1, **kwargs: Any) -> None:
    for backend in backends():
        if backend.app.follows != using:
            continue
        applied = migrate_stream(backend)
        if applied and verbosity >= 1:
            print(f"  Tables of EMS: version {applied[-1]}")


def migrate_stream(backend: EmsBackend) -> list[int]:
    """Create the tables of a backend's stream, or bring them up to date; return the versions that were applied.

    Raises:
        EmsError: the server cannot be reached, or refuses.
    """
    from emsworker.store.engine.database import Database
    from emsworker.store.engine.schema import migrate

    app = backend.app
    app.follow()
    assert app.settings.url is not None, "from DATABASES, or given"
    database = Database(app.settings.url, app.settings.connect_timeout_s)
    try:
        return database.call(migrate)
    finally:
        database.thread_session().close()


def check_tables(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> Iterable[checks.CheckMessage]:
    """Check that the tables are there; run by ``manage.py check --database default`` and before a migration."""
    from emsworker.store.engine.database import Database
    from emsworker.store.engine.schema import check_version

    for backend in backends():
        if not backend.is_configured or backend.app.follows not in (databases or ()):
            continue
        try:
            backend.app.follow()
            database = Database(backend.app.settings.url or "", backend.app.settings.connect_timeout_s)
            database.call(check_version)
            database.thread_session().close()
        except EmsError as error:
            place = f"TASKS[{backend.alias!r}]"
            yield checks.Warning(f"{place}: {error}", hint="Run `manage.py ems_migrate`.", id="ems.W002")
