"""Access to the dashboard: who asks, at which level, and if a change was asked for by one of our own pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Literal, Protocol, get_args, runtime_checkable
from urllib.parse import SplitResult, urlsplit

from starlette.requests import Request
from starlette.responses import Response

from emsworker.extending.errors import ConfigError, Problem
from emsworker.extending.processes import ticks

_log = logging.getLogger(__name__)

Level = Literal["viewer", "reader", "operator"]
LEVELS: tuple[Level, ...] = get_args(Level)

_SCRYPT = {"n": 1 << 14, "r": 8, "p": 1}
_FREE_GUESSES, _FREE_GUESSES_OF_AN_ADDRESS, _LONGEST_PAUSE_S, _MOST_GUESSERS = 5, 30, 60.0, 10_000
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_LOCAL_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d*)?", re.IGNORECASE)


@dataclass(frozen=True)
class Visitor:
    """Person or program that looks at the dashboard.

    Args:
        name: shown on the page, and written into the audit.
        level: ``viewer``: no body, header or error text; ``reader``: these as well; ``operator``: may change things.
    """

    name: str
    level: Level

    def may(self, level: Level) -> bool:
        """True if the visitor has this level or a higher one."""
        return LEVELS.index(self.level) >= LEVELS.index(level)


AccessRule = Callable[[Request], "Visitor | Level | None"]


@runtime_checkable
class SignsIn(Protocol):
    """Rule of access with pages of its own, at which people sign in and out.

    Attributes:
        sign_in: path of the page that begins; it gets the address to return to as ``back``.
        sign_out: path that a form is posted to.
    """

    sign_in: str
    sign_out: str

    def __call__(self, request: Request) -> Visitor | Level | None:
        """Admit who has signed in."""

    def endpoints(self) -> Sequence[tuple[str, str, Callable[[Request], Awaitable[Response]]]]:
        """Return the method, path and function of each page."""


def admitted(rule: AccessRule, request: Request) -> Visitor | None:
    """Return the visitor of a request by a rule, or ``None`` if it is to be refused.

    Raises:
        TypeError: the rule returned something else.
    """
    found = rule(request)
    if found is None or isinstance(found, Visitor):
        return found
    if found not in LEVELS:
        raise TypeError(f"access(request) returned {found!r}: it must return None, a Visitor or one of {LEVELS}")
    return Visitor(found, found)


class Local:
    """Rule without authentication, for a server that only this machine can reach.

    The name in the address must be that of this machine: otherwise any web site could have its own name point here,
    and read the pages by the browser of somebody who works on this machine.
    """

    challenge = None

    def __init__(self, level: Level) -> None:
        self._visitor = Visitor("local", level)

    def __call__(self, request: Request) -> Visitor | None:
        """Admit requests to this machine's own names."""
        # For a malformed header, such as localhost@evil.example, Starlette's URL has the address that was connected to.
        return self._visitor if _LOCAL_HOST.fullmatch(request.headers.get("host", "localhost")) else None


class Passwords:
    """Rule of HTTP Basic authentication, by a file of hashed passwords.

    Each line is ``name:level:salt:hash``, as ``ems web password NAME`` prints it; ``#`` begins a comment. Use it behind
    TLS only.

    Args:
        path: the file.

    Raises:
        ConfigError: the file cannot be read, or a line of it is wrong.
    """

    challenge = 'Basic realm="ems", charset="UTF-8"'

    def __init__(self, path: str | Path) -> None:
        self._users = _read_users(Path(path))
        self._key = os.urandom(32)
        self._known: dict[str, bytes] = {}
        self._guesses = Guesses()

    def __call__(self, request: Request) -> Visitor | None:
        """Admit users that give their password."""
        name, password = _basic(request.headers.get("authorization", ""))
        if not name:
            return None
        user = self._users.get(name)
        salt, wanted = (user[1], user[2]) if user else (b"nobody", b"")
        # A right password is remembered by a keyed hash, because the slow one would take its time for each request.
        quick = hmac.digest(self._key, salt + password.encode(), "sha256")
        if user and hmac.compare_digest(self._known.get(name, b""), quick):
            return Visitor(name, user[0])
        address = request.client.host if request.client is not None else ""
        if not self._guesses.may_try(address, name):
            return None
        if not hmac.compare_digest(_slow_hash(password, salt), wanted) or user is None:
            self._guesses.failed(address, name)
            return None
        self._guesses.succeeded(address, name)
        self._known[name] = quick
        return Visitor(name, user[0])


class Guesses:
    """Wrong passwords by address and name: after a few, the next try has to wait, twice as long each time.

    An address that tries many names waits as well. People who are in are not asked again, so they wait for nobody.
    """

    def __init__(self) -> None:
        self._wrong: dict[tuple[str, ...], tuple[int, float]] = {}  # how many, and until when no try is looked at

    def may_try(self, address: str, name: str) -> bool:
        """True unless the last wrong passwords were too many, too lately."""
        return all(self._wrong.get(key, (0, 0.0))[1] <= ticks() for key, _ in self._keys(address, name))

    def failed(self, address: str, name: str) -> None:
        """Count a wrong password, and log it."""
        counts = []
        for key, free in self._keys(address, name):
            wrong = self._wrong.pop(key, (0, 0.0))[0] + 1
            pause_s = min(2.0 ** min(wrong - free, 10), _LONGEST_PAUSE_S) if wrong >= free else 0.0
            self._wrong[key] = (wrong, ticks() + pause_s)
            counts.append(wrong)
        for key in list(self._wrong)[:-_MOST_GUESSERS]:  # the oldest ones
            self._wrong.pop(key, None)
        shown = "".join(each if each.isprintable() else "?" for each in name)[:100]
        _log.warning("wrong password for %r from %s, %d so far", shown, address, counts[0])

    def succeeded(self, address: str, name: str) -> None:
        """Forget the wrong passwords of a name at an address."""
        self._wrong.pop((address, name), None)

    @staticmethod
    def _keys(address: str, name: str) -> tuple[tuple[tuple[str, ...], int], ...]:
        return ((address, name), _FREE_GUESSES), ((address,), _FREE_GUESSES_OF_AN_ADDRESS)


class ProxyUsers:
    """Rule that trusts a header which an authenticating proxy sets.

    Args:
        addresses: the proxy's own addresses or networks; a request from elsewhere is refused.
        levels: level of each user; ``*`` for everybody whom the proxy lets through.
        header: the name of the header with the user's name.

    Raises:
        ConfigError: an address or a level is wrong.
    """

    challenge = None

    def __init__(
        self, addresses: Collection[str], levels: Mapping[str, Level], header: str = "X-Forwarded-User"
    ) -> None:
        try:
            self._networks = [ip_network(one) for one in addresses]
        except ValueError as error:
            raise ConfigError([Problem("trusted proxy", str(error), "give addresses like 10.0.0.5")]) from None
        for name, level in levels.items():
            check_level(f"user {name}", level)
        self._levels, self._header = dict(levels), header

    def __call__(self, request: Request) -> Visitor | None:
        """Admit users that the proxy names."""
        name = request.headers.get(self._header, "").strip()
        if not name or request.client is None or len(request.headers.getlist(self._header)) != 1:
            return None
        try:
            peer = ip_address(request.client.host)
        except ValueError:
            return None
        if not any(peer in network for network in self._networks):
            return None
        level = self._levels.get(name) or self._levels.get("*")
        return Visitor(name, level) if level else None


def password_line(name: str, level: Level, password: str) -> str:
    """Return the line of a user for the file of :class:`Passwords`.

    Raises:
        ConfigError: the name or the level is wrong, or the password is too short.
    """
    check_level("level", level)
    if not re.fullmatch(r"[^\s:#][^:\x00-\x1f]{0,99}", name):
        raise ConfigError([Problem("name", repr(name), "must be 1 to 100 characters without colons")])
    if len(password) < 8:
        raise ConfigError([Problem("password", "***", "must have 8 characters or more")])
    salt = os.urandom(16)
    return f"{name}:{level}:{salt.hex()}:{_slow_hash(password, salt).hex()}"


def comes_from_here(request: Request) -> bool:
    """True if a browser says that a request was made by one of our own pages, and not by another site.

    Sec-Fetch-Site is the browser's own judgement, and needs no token; it holds behind a proxy that changes the host.
    Older browsers send the origin only. A program has to send one of them, too.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = web_address(request.headers.get("origin", ""))
    return origin is not None and origin.netloc == request.headers.get("host")


def is_loopback(host: str) -> bool:
    """True if an address to listen on is reached from this machine only."""
    try:
        return host in _LOOPBACK_NAMES or ip_address(host).is_loopback
    except ValueError:
        return False


def check_level(name: str, level: str) -> Level:
    """Return a level.

    Raises:
        ConfigError: it is none; ``name`` says what it was given for.
    """
    for one in LEVELS:
        if one == level:
            return one
    raise ConfigError([Problem(name, repr(level), f"must be one of {', '.join(LEVELS)}")])


def public_path(url: str) -> str:
    """Return the path of the dashboard's address as browsers see it, without a slash at its end.

    Raises:
        ConfigError: it is no http or https address, or has more than a host and a path.
    """
    parts = web_address(url)
    if parts is None or parts.query or parts.fragment or "@" in parts.netloc or re.search(r"[^\w/.~-]|//", parts.path):
        raise ConfigError([Problem("public URL", repr(url), "must be like https://ops.example/ems")])
    return parts.path.rstrip("/")


def web_address(url: str) -> SplitResult | None:
    """Return the parts of an http or https address, or ``None`` if it is none."""
    try:
        parts = urlsplit(url)
        return parts if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 else None
    except ValueError:
        return None


def _read_users(path: Path) -> dict[str, tuple[Level, bytes, bytes]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("password file", str(path), f"cannot be read: {error}")]) from None
    if path.stat().st_mode & 0o077:
        _log.warning("password file %s can be read by other users of this machine; run: chmod 600 %s", path, path)
    users = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.startswith("#"):
            name, level, salt, hashed = _fields(path, number, line)
            users[name] = (level, salt, hashed)
    if not users:
        raise ConfigError([Problem("password file", str(path), "names no user; `ems web password NAME` makes a line")])
    return users


def _fields(path: Path, number: int, line: str) -> tuple[str, Level, bytes, bytes]:
    try:
        name, level, salt, hashed = line.strip().split(":")
        return name, check_level("level", level), bytes.fromhex(salt), bytes.fromhex(hashed)
    except (ValueError, ConfigError):
        fix = "is not name:level:salt:hash; `ems web password NAME` makes such a line"
        raise ConfigError([Problem(f"{path} line {number}", line.partition(":")[0], fix)]) from None


def _basic(header: str) -> tuple[str, str]:
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return "", ""
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return name, password


def _slow_hash(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(errors="surrogatepass"), salt=salt, dklen=32, **_SCRYPT)
