"""Private database and Redis for one developer, started together."""

import os
import re
from pathlib import Path

from emsworker.extending.declaration import DefaultStream
from emsworker.extending.errors import ConfigError, Problem
from emsworker.local.database import LocalDatabase
from emsworker.local.errors import ServerFailed, ServerMissing
from emsworker.local.redis_server import Redis
from emsworker.local.server import Server


def default_folder() -> Path:
    """Return `$EMS_LOCAL_DIR`, or else `ems/local` in the user's data folder (`$XDG_DATA_HOME`, `~/.local/share`).

    Raises:
        ConfigError: none of them is set, and the user has no home folder, as in many containers.
    """
    if folder := os.environ.get("EMS_LOCAL_DIR"):
        return Path(folder)
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    except RuntimeError:
        fix = "this user has no home folder, in which a local stream could be; set EMS_URL to the address of a stream"
        raise ConfigError([Problem("EMS_LOCAL_DIR", "not set", fix)]) from None
    return data / "ems" / "local"


class LocalStack:
    """Private database, and a private Redis if one is installed.

    Args:
        folder: the folder of both; None takes `default_folder()`.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()
        self.database = LocalDatabase(self.folder / "database")
        self.redis = Redis(self.folder / "redis")

    def start(self, timeout_s: float = 60) -> None:
        """Start the servers that do not run yet; leave out Redis if it is not installed.

        Raises:
            ServerMissing: no database server is installed.
            ServerFailed: a server does not start, or the folder cannot be written.
        """
        try:
            self.database.start(timeout_s)
            if self._missing(self.redis) is None:
                self.redis.start(timeout_s)
        except OSError as error:
            raise ServerFailed(
                f"the local stream cannot use the folder {self.folder}: {error}; EMS_LOCAL_DIR names another one"
            ) from error

    def stop(self, timeout_s: float = 30) -> None:
        """Stop both servers cleanly.

        Raises:
            ServerFailed: a server still runs after that time.
        """
        try:
            self.redis.stop(timeout_s)
        finally:
            self.database.stop(timeout_s)

    @property
    def url(self) -> str | None:
        """The URL of the running database, with the password; None if it does not run."""
        return self.database.url if self.database.alive else None

    @property
    def redis_url(self) -> str | None:
        """The URL of the running Redis, with the password; None if it does not run."""
        return self.redis.url if self.redis.alive else None

    def status(self) -> dict[str, object]:
        """Return the status of both servers as plain values for JSON, passwords hidden."""
        return {
            "folder": str(self.folder),
            "database": self._describe(self.database),
            "redis": self._describe(self.redis),
        }

    def _describe(self, server: Server) -> dict[str, object]:
        if missing := self._missing(server):
            return {"running": False, "missing": missing}
        pid = server.pid
        about: dict[str, object] = {"running": pid is not None, "kind": server.kind, "version": server.version}
        if pid is not None:
            about |= {"pid": pid, "port": server.port, "url": re.sub(r":[^:/@]*@", ":***@", server.url)}
        return about

    @staticmethod
    def _missing(server: Server) -> str | None:
        try:
            _ = server.version
        except ServerMissing as error:
            return str(error)
        return None


def running_stream() -> DefaultStream | None:
    """Return the local stream, if it runs."""
    stack = LocalStack()
    return DefaultStream(url, stack.redis_url, f"the local stream in {stack.folder}") if (url := stack.url) else None
