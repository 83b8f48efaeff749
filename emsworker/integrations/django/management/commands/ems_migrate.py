"""``manage.py ems_migrate``: creates the stream's tables; ``manage.py migrate`` does it too."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from emsworker.extending.errors import EmsError
from emsworker.integrations.django.apps import django_text, migrate_stream
from emsworker.integrations.django.backend import get_backend


class Command(BaseCommand):  # type: ignore[misc]
    """Create the tables of a stream, or bring them up to date."""

    help = "Create the tables of EMS, or bring them up to date; `manage.py migrate` does it too."

    def add_arguments(self, parser: Any) -> None:
        """Add the name of the backend."""
        parser.add_argument("--backend", default="default", help="name of the backend in TASKS")

    def handle(self, *args: Any, **given: Any) -> None:
        """Migrate; harmless when repeated."""
        backend = get_backend(given["backend"])
        try:
            applied = migrate_stream(backend)
        except EmsError as error:
            raise CommandError(django_text(error, backend)) from None
        done = f"applied: {', '.join(map(str, applied))}" if applied else "nothing to do"
        self.stdout.write(f"The tables of EMS are up to date ({done}).")
