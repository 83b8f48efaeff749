"""``manage.py ems_worker``: a worker that runs the project's tasks."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.integrations.django.backend import EmsBackend
from emsworker.integrations.django.management.passing import PassingCommand


class Command(PassingCommand):
    """Run a worker; the options are those of ``ems worker``, such as ``-p 2 -t 4 -Q mail``."""

    help = "Run a worker for the project's tasks. All other options are those of `ems worker`: -p 2 -t 4 -Q mail ..."

    def command_line(self, backend: EmsBackend, arguments: Sequence[str]) -> list[str]:
        """Return the arguments of ``ems worker`` with the backend's app."""
        backend.app.follow()  # or an error in the settings would come from another process
        return ["worker", "-A", f"emsworker.integrations.django.worker:{backend.alias}", *arguments]
