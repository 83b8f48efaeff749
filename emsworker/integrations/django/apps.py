"""Django's configuration of the app."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate

from emsworker.extending.errors import EmsError, SchemaMissing
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
    from emsworker.extending.database import Database, migrate

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
    for backend in backends():
        if not backend.is_configured or backend.app.follows not in (databases or ()):
            continue
        try:
            hint = _missing_tables(backend)
        except EmsError as error:
            yield _warning(backend, error, None)
        else:
            if hint is not None:
                yield _warning(backend, *hint)


def _missing_tables(backend: EmsBackend) -> tuple[EmsError, str] | None:
    """Return the error of tables of another version, with the fix; ``None`` if `migrate` is about to apply it."""
    from emsworker.extending.database import Database, check_version, current_version, latest_version

    backend.app.follow()
    database = Database(backend.app.settings.url or "", backend.app.settings.connect_timeout_s)
    try:
        database.call(check_version)
    except SchemaMissing as error:
        if database.call(current_version) > latest_version():
            return error, "Install the version of emsworker that made these tables, or a newer one."
        is_migrating = sys.argv[1:2] == ["migrate"]  # no other command makes this check and the tables after it
        return None if is_migrating else (error, "Run `manage.py ems_migrate`.")
    finally:
        database.thread_session().close()
    return None


def _warning(backend: EmsBackend, error: EmsError, hint: str | None) -> checks.Warning:
    return checks.Warning(f"TASKS[{backend.alias!r}]: {django_text(error, backend)}", hint=hint, id="ems.W002")


def django_text(error: EmsError, backend: EmsBackend) -> str:
    """Return the text of an error with the names that a Django project has for its address and its commands."""
    text = str(error).replace("EMS_URL", backend.address_name)
    return text.replace("`ems migrate`", "`manage.py ems_migrate`").replace("`ems ", "`manage.py ems ")
