"""Connection to the stream, from the environment or a profile file: options would appear in plans and logs."""

from __future__ import annotations

import configparser
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from emsworker.app import Ems
from emsworker.core.errors import ConfigError, Problem
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session

T = TypeVar("T")

_FILE_VARIABLE = "EMS_PROFILES"
_DEFAULT_FILE = "~/.config/ems/profiles.ini"


def open_stream(profile: str | None, **settings: Any) -> Ems:
    """Open the stream of a profile, or without one that of EMS_URL (or the local stream).

    Args:
        settings: other settings of the app.

    Raises:
        ConfigError: the profile does not exist or is incomplete.
    """
    if profile is None:
        return Ems("spark", **settings)
    section = _section(profile)
    return Ems("spark", url=section["url"], redis_url=section.get("redis_url"), **settings)


@contextlib.contextmanager
def open_database(profile: str | None) -> Iterator[Database]:
    """Open the stream's database; its one connection is closed at the end, and may move between threads.

    Raises:
        SchemaMissing, AccessDenied, StoreUnavailable: the database cannot be used.
    """
    with closing_session(open_stream(profile).stream.database.with_one_session()) as database:
        yield database


@contextlib.contextmanager
def closing_session(database: Database) -> Iterator[Database]:
    """Close this thread's connection at the end."""
    try:
        yield database
    finally:
        database.thread_session().close()


def call(profile: str | None, work: Callable[[Session], T]) -> T:
    """Run ``work`` on its own connection, and again if that is lost: ``work`` must be idempotent."""
    with open_database(profile) as database:
        return database.call(work)


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
