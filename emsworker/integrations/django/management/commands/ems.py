"""``manage.py ems``: any command of ``ems`` on the project's stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from emsworker.integrations.django.backend import EmsBackend
from emsworker.integrations.django.management.passing import PassingCommand


class Command(PassingCommand):
    """Run a command of ``ems``, such as ``manage.py ems groups list``."""

    help = "Run any `ems` command on the project's stream, for example: ems groups list, ems dead list."

    def command_line(self, backend: EmsBackend, arguments: Sequence[str]) -> list[str]:
        """Return the arguments as they are."""
        return [*arguments]

    def environment(self, backend: EmsBackend) -> Mapping[str, str]:
        """Return the addresses; other users of the machine could read a command line."""
        backend.app.follow()
        settings = backend.app.settings
        found = {"EMS_URL": settings.url, "EMS_REDIS_URL": settings.redis_url}
        return {**super().environment(backend), **{name: one for name, one in found.items() if one is not None}}
