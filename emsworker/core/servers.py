"""The servers of an app: the name and the address of each, and patterns that place new topics on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.url import DatabaseUrl

MAIN = "main"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FORM = "write NAME=mysql://user:password@host:3306/database PATTERN ..., one server after another"


@dataclass(frozen=True)
class NamedServer:
    """A server with a name.

    Attributes:
        patterns: names of topics, with ``*`` and ``?``; a topic that is new is created on the first server with one
            that fits, and on the main server if none does.
    """

    name: str
    url: str = field(repr=False)
    patterns: tuple[str, ...] = ()


def parse_servers(text: str) -> tuple[NamedServer, ...]:
    """Parse the setting ``servers``: for each server its name and address, then patterns, all separated by spaces.

    Raises:
        ValueError: it is malformed; the text never repeats a password.
    """
    found: list[tuple[str, str, list[str]]] = []
    for word in text.split():
        if "://" in word:
            name, equals, url = word.partition("=")
            if not equals or "://" in name:
                raise ValueError(f"an address has no name before it; {_FORM}")
            found.append((name, url, []))
        elif not found:
            raise ValueError(f"it must begin with a server, not with {word!r}; {_FORM}")
        else:
            found[-1][2].append(word)
    return tuple(_checked(found))


def _checked(found: list[tuple[str, str, list[str]]]) -> Iterator[NamedServer]:
    names = set[str]()
    for name, url, patterns in found:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a name of a server; use lower-case letters, digits, - and _, a letter first"
            )
        if name == MAIN:
            raise ValueError(f"{MAIN!r} is the server of the setting url; name this one differently")
        if name in names:
            raise ValueError(f"it names the server {name!r} twice")
        try:
            DatabaseUrl.parse(url)
        except ValueError as error:
            raise ValueError(f"server {name!r}: {error}") from None
        names.add(name)
        yield NamedServer(name, url, tuple(patterns))


def check_apart(streams: Mapping[str, str]) -> None:
    """Refuse servers that lead to one stream: a topic would be moved from it to itself.

    Args:
        streams: the identity of the stream on each server that answers.

    Raises:
        ConfigError: two names have one stream.
    """
    first: dict[str, str] = {}
    for name, stream in streams.items():
        if (other := first.setdefault(stream, name)) != name:
            fix = (
                f"leads to the same stream as {other!r}: by another name of its host, or its database is a copy; take "
                "one of the two out, or give the server a database of its own"
            )
            raise ConfigError([Problem("servers", repr(name), fix)])


def place(topic: str, servers: tuple[NamedServer, ...]) -> str:
    """Return the name of the server on which a new topic is created."""
    for server in servers:
        if any(fnmatchcase(topic, pattern) for pattern in server.patterns):
            return server.name
    return MAIN


@dataclass(frozen=True)
class ServerRun:
    """Identity of the server that answers, and its uptime in whole seconds (at most one too many)."""

    identity: tuple[object, ...]
    up_s: float


@dataclass(frozen=True)
class ForwardTopic:
    """A topic of another server, with messages in the outbox of this one.

    Attributes:
        last_move: see :func:`emsworker.store.stream.guards.last_move`.
    """

    topic_id: int
    topic: str
    last_move: int


@dataclass(frozen=True)
class KeptTopic:
    """A topic while this server keeps it.

    Attributes:
        former: the servers that have kept it before, in the order in which they gave it up.
        last_move: see :func:`emsworker.store.stream.guards.last_move`.
    """

    topic_id: int
    former: tuple[str, ...]
    last_move: int


def later_servers(former: Sequence[str], server: str) -> Sequence[str]:
    """Return those former servers of a topic that have given it up after one of them; all, if that one never had it."""
    return former[former.index(server) + 1 :] if server in former else former
