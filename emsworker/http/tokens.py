"""Tokens of clients: who asks, in which role, and for which topics; the file has their hashes alone."""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.processes import ticks

ROLES = ("reader", "producer", "worker")
"""Each may do what those before it may."""
_PREFIX = "ems_"
_LOOK_S = 1.0
_NAME = re.compile(r"[^\s:#][^:\x00-\x1f]{0,99}")
_TOPICS = re.compile(r"[A-Za-z0-9._*-]+(,[A-Za-z0-9._*-]+)*")  # a colon in a name of a topic is matched by *
_FIX = "is not name:role:topics:hash; `ems http token NAME` makes such a line"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpToken:
    """A token.

    Args:
        name: of its holder, for logs.
        role: one of :data:`ROLES`.
        topics: patterns of topics.
    """

    name: str
    role: str
    topics: tuple[str, ...]

    def may(self, role: str) -> bool:
        """True if it has this role or one that may do more."""
        return ROLES.index(self.role) >= ROLES.index(role)

    def reaches(self, topic: str) -> bool:
        """True if it is for a topic."""
        return any(fnmatchcase(topic, pattern) for pattern in self.topics)


class TokenFile:
    """The file of tokens; it is read again within a second after it was changed, so that a token can be taken away.

    Args:
        path: the file.

    Raises:
        ConfigError: it cannot be read, or a line of it is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state, self._tokens = self._stamp(), _read(path)
        self._look_at = ticks() + _LOOK_S

    def find(self, header: str) -> HttpToken | None:
        """Return the token that a header ``Authorization`` names, if there is such a one."""
        scheme, _, given = header.partition(" ")
        if scheme.lower() != "bearer" or not given:
            return None
        if ticks() >= self._look_at:
            self._look_again()
        return self._tokens.get(_hash(given.strip()))

    def _look_again(self) -> None:
        self._look_at = ticks() + _LOOK_S
        try:
            state = self._stamp()
            if state != self._state:
                self._state, self._tokens = state, _read(self._path)
        except ConfigError as error:  # it may be half written: those of before hold, and it is read again
            self._state = (0, 0, 0)
            _log.warning("the tokens stay as they were: %s", error)

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, error) from None
        return found.st_mtime_ns, found.st_size, found.st_ino


def new_token(name: str, role: str, topics: str) -> tuple[str, str]:
    """Return a new token, and its line for the file.

    Raises:
        ConfigError: the name or the topics are wrong.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError([Problem("name", repr(name), "must be 1 to 100 characters without colons")])
    if not _TOPICS.fullmatch(topics):
        raise ConfigError([Problem("topics", repr(topics), "must be names or patterns like orders,mail.*")])
    token = _PREFIX + secrets.token_urlsafe(32)
    return token, f"{name}:{role}:{topics}:{_hash(token)}"


def _hash(token: str) -> str:
    """Return the hash of a token: a quick one, as nobody guesses 256 random bits."""
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError([Problem("token file", str(path), f"cannot be read: {error}")])


def _read(path: Path) -> Mapping[str, HttpToken]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None
    found: dict[str, HttpToken] = {}
    for place, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            name, role, topics, hashed = _fields(path, place, line)
            found[hashed] = HttpToken(name, role, tuple(topics.split(",")))
    if not found:
        raise ConfigError([Problem("token file", str(path), "names no token; `ems http token NAME` makes a line")])
    return found


def _fields(path: Path, place: int, line: str) -> tuple[str, str, str, str]:
    parts = line.strip().split(":")
    if len(parts) != 4 or parts[1] not in ROLES or not _TOPICS.fullmatch(parts[2]):
        raise ConfigError([Problem(f"{path} line {place}", parts[0], _FIX)])
    if not re.fullmatch(r"[0-9a-f]{64}", parts[3]):
        raise ConfigError([Problem(f"{path} line {place}", parts[0], _FIX)])
    return parts[0], parts[1], parts[2], parts[3]
