"""Connection to the stream, from the environment or a profile file: options would appear in plans and logs."""

from __future__ import annotations

import configparser
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from emsworker.arrow import scan
from emsworker.extending.apps import Ems
from emsworker.extending.database import Database, ReplicaDatabase, Session, check_version
from emsworker.extending.errors import ConfigError, Problem, StoreUnavailable
from emsworker.extending.processes import claim_role, ticks
from emsworker.extending.settings import MAIN, parse_servers
from emsworker.extending.stream import find_hole
from emsworker.extending.values import OffsetRange

T = TypeVar("T")

_FILE_VARIABLE = "EMS_PROFILES"
_DEFAULT_FILE = "~/.config/ems/profiles.ini"
_KEYS = ("url", "redis_url", "servers", "read_url")
_REPLICA_S, _REPLICA_LOOK_S = 60.0, 0.1


def open_stream(profile: str | None, **settings: Any) -> Ems:
    """Open the stream of a profile, or without one that of EMS_URL (or the local stream).

    Args:
        settings: other settings of the app.

    Raises:
        ConfigError: the profile does not exist or is incomplete.
    """
    claim_role("reader")  # before the broker says "producer"; what writes has claimed its own
    if profile is None:
        return Ems("spark", **settings)
    section = _section(profile)
    given: dict[str, Any] = {name: section[name] for name in _KEYS if name in section}
    return Ems("spark", **given, **settings)


def server_names(profile: str | None) -> list[str]:
    """Return the names of the servers of a stream, the main one first."""
    settings = open_stream(profile).settings
    return [MAIN, *(one.name for one in parse_servers(settings.servers))]


@contextlib.contextmanager
def open_database(profile: str | None, server: str = MAIN) -> Iterator[Database]:
    """Open the stream's database; its one connection is closed at the end, and may move between threads.

    Args:
        server: of several servers, the one that is meant.

    Raises:
        SchemaMissing, AccessDenied, StoreUnavailable: the database cannot be used.
    """
    checked = open_stream(profile).streams.server(server).database
    checked.thread_session().close()  # it has checked the version; else it would stay until Python collects it
    with closing_session(checked.with_one_session()) as database:
        yield database


@dataclass(frozen=True)
class ReadDatabase:
    """An open database to read messages from.

    Attributes:
        replica: it is one of the replicas of `read_url`, which may be behind what was planned.
    """

    database: Database
    replica: bool

    def wait_for(self, offsets: OffsetRange) -> None:
        """Wait until every offset of a range is there.

        The range was planned on this replica or on another one, below the high watermark there. A replica that is
        further behind, or applies transactions in another order, would leave rows out without an error.

        Raises:
            StoreUnavailable: they are not there after some time.
        """
        until = ticks() + _REPLICA_S
        while self.replica and (hole := self._hole(offsets)) < offsets.end:
            if ticks() > until:
                raise StoreUnavailable(
                    f"the replica {self.database.servers} has no offset {hole} of partition {offsets.partition}, which "
                    f"was there when the read was planned, after {_REPLICA_S:g} s; is its replication running?"
                )
            time.sleep(_REPLICA_LOOK_S)

    def _hole(self, offsets: OffsetRange) -> int:
        def find(session: Session) -> int:
            bounds = [one for one in scan.list_bounds(session, offsets.topic_id) if one.partition == offsets.partition]
            # What retention has deleted is no hole; a topic that is gone is noticed by who reads it.
            kept = offsets.part(bounds[0].log_start, offsets.end) if bounds else offsets.part(offsets.end, offsets.end)
            return find_hole(session, kept) if kept else offsets.end

        return self.database.call(find)


@contextlib.contextmanager
def open_reading(profile: str | None, server: str = MAIN) -> Iterator[ReadDatabase]:
    """Open what messages are read from: a replica of the setting `read_url`, if there is one; else the database.

    Raises:
        SchemaMissing, AccessDenied, StoreUnavailable: the database cannot be used.
    """
    settings = open_stream(profile).settings
    if server != MAIN or settings.read_url is None:
        with open_database(profile, server) as database:
            yield ReadDatabase(database, replica=False)
        return
    replicas = ReplicaDatabase(settings.read_url, settings.connect_timeout_s)
    with closing_session(replicas):
        replicas.call(check_version)  # the first that answers is used from now on
    with closing_session(replicas.with_one_session()) as database:
        yield ReadDatabase(database, replica=True)


@contextlib.contextmanager
def closing_session(database: Database) -> Iterator[Database]:
    """Close this thread's connection at the end."""
    try:
        yield database
    finally:
        database.thread_session().close()


def call(profile: str | None, work: Callable[[Session], T], server: str = MAIN) -> T:
    """Run ``work`` on its own connection, and again if that is lost: ``work`` must be idempotent."""
    with open_database(profile, server) as database:
        return database.call(work)


def call_reading(profile: str | None, work: Callable[[Session], T], server: str = MAIN) -> T:
    """Run ``work`` as :func:`call` does, on what messages are read from; see :func:`open_reading`."""
    with open_reading(profile, server) as reading:
        return reading.database.call(work)


def _section(profile: str) -> configparser.SectionProxy:
    path = Path(os.environ.get(_FILE_VARIABLE) or _DEFAULT_FILE).expanduser()
    parser = configparser.ConfigParser(interpolation=None)  # passwords may contain %
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except OSError as error:
        fix = f"the profile file {path} cannot be read ({error.strerror}); {_FILE_VARIABLE} names another"
        raise ConfigError([Problem("profile", profile, fix)]) from None
    except configparser.Error:  # its text quotes lines, which may contain a password
        fix = f"the profile file {path} is malformed; write [{profile}] and below it url = mysql://..."
        raise ConfigError([Problem("profile", profile, fix)]) from None
    if not parser.has_option(profile, "url"):
        fix = f"{path} has no section [{profile}] with a url; it has {', '.join(parser.sections()) or 'none'}"
        raise ConfigError([Problem("profile", profile, fix)])
    return parser[profile]
