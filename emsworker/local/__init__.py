"""Private servers for development and tests: a MariaDB or MySQL, and a Redis, each in its own folder.

They listen on 127.0.0.1 only, read no system configuration, and never touch a server that they did not start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.local.database import LocalDatabase
    from emsworker.local.errors import ServerFailed, ServerMissing
    from emsworker.local.redis_server import Redis
    from emsworker.local.stack import LocalStack

__all__ = ["LocalDatabase", "LocalStack", "Redis", "ServerFailed", "ServerMissing"]

__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.local.database": "LocalDatabase",
        "emsworker.local.errors": "ServerFailed ServerMissing",
        "emsworker.local.redis_server": "Redis",
        "emsworker.local.stack": "LocalStack",
    },
)
