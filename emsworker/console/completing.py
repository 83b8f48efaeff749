"""Completion of names in the shell: of topics and groups by the database, of tasks by the app that EMS_APP names.

A shell waits for it, so it is silent about everything that goes wrong, and ends after a second and a half.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from .context_keys import SERVER, URL

if TYPE_CHECKING:
    from emsworker.admin.dead import DeadClass
    from emsworker.store import Database

_CONNECT_S = 0.5
_ANSWER_S = 1.5
_READ_S = 1.2  # for all servers: below the above, so that the names of those that answer are shown
_ENOUGH = 1000


class _TooLate(BaseException):
    """The shell has waited long enough; no handler of errors stops this."""


def complete_topics(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the topics that begin with what was typed; after a comma, another one."""
    return _items(incomplete, lambda: _read(ctx, _topics))


def complete_groups(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the groups that begin with what was typed: those of the topic, if the command line names one."""
    topic = ctx.params.get("topic")
    return _items(incomplete, lambda: _read(ctx, lambda database: _groups(database, topic)))


def complete_servers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the names of the servers that begin with what was typed."""
    return _items(incomplete, _servers)


def complete_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the tasks of the app of EMS_APP that begin with what was typed."""
    return _items(incomplete, _tasks)


def complete_dead_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the tasks of dead letters that begin with what was typed."""
    return _items(incomplete, lambda: _read(ctx, lambda database: [one.task for one in _dead_classes(database)]))


def complete_errors(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the error classes of dead letters that begin with what was typed."""
    return _items(incomplete, lambda: _read(ctx, lambda database: [one.error_type for one in _dead_classes(database)]))


def _items(incomplete: str, names: Callable[[], Iterable[str]]) -> list[CompletionItem]:
    before, comma, begun = incomplete.rpartition(",")
    found: list[str] = []
    try:
        with _in_time(), _silenced():
            found = sorted({name for name in names() if name and name.startswith(begun)})[:_ENOUGH]
    except (_TooLate, Exception):
        return []
    return [CompletionItem(f"{before}{comma}{name}") for name in found]


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Raise :class:`_TooLate` in the block after some time, also while it waits for a server."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise _TooLate

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _ANSWER_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """Discard what an app, or a library, prints: the shell would take it for names."""
    with (
        Path(os.devnull).open("w") as nothing,
        contextlib.redirect_stdout(nothing),
        contextlib.redirect_stderr(nothing),
    ):
        yield


def _read(ctx: click.Context, work: Callable[[Database], list[str]]) -> list[str]:
    from emsworker.core.config import Settings
    from emsworker.core.extension import default_url
    from emsworker.core.process.clock import ticks
    from emsworker.core.servers import MAIN, parse_servers
    from emsworker.store import Database

    settings = Settings.load(**({"url": ctx.meta[URL]} if URL in ctx.meta else {}))
    url = settings.url or default_url()
    if url is None:
        return []
    urls = {MAIN: url} | {one.name: one.url for one in parse_servers(settings.servers)}
    wanted = [urls[ctx.meta[SERVER]]] if SERVER in ctx.meta else list(urls.values())
    found = queue.SimpleQueue[list[str]]()

    def read(url: str) -> None:
        names: list[str] = []
        with contextlib.suppress(Exception):  # one that is away must not hide the others' names
            database = Database(url, _CONNECT_S, _CONNECT_S)
            names = work(database)
            database.thread_session().close()
        found.put(names)

    for one in wanted:
        threading.Thread(target=read, args=(one,), daemon=True).start()
    names, until = list[str](), ticks() + _READ_S
    with contextlib.suppress(queue.Empty):
        for _ in wanted:
            names += found.get(timeout=max(0.0, until - ticks()))
    return names


def _servers() -> list[str]:
    from emsworker.core.config import Settings
    from emsworker.core.servers import MAIN, parse_servers

    return [MAIN, *(one.name for one in parse_servers(Settings.load().servers))]


def _topics(database: Database) -> list[str]:
    from emsworker.store import topics

    return [topic.name for topic in database.call(topics.list_topics)]


def _groups(database: Database, topic: str | None) -> list[str]:
    from emsworker.store import topics

    wanted = {one.id for one in database.call(topics.list_topics) if topic is None or one.name == topic}
    return [group.name for group in database.call(topics.list_groups) if group.topic_id in wanted]


def _dead_classes(database: Database) -> Sequence[DeadClass]:
    from emsworker.admin import Admin

    return Admin(database).dead.classes(most=1)


def _tasks() -> list[str]:
    from emsworker.loader import load_app

    path = os.environ.get("EMS_APP")
    if not path:
        return []
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the workers' children do it
    return [name for route in load_app(path).registry.routes.values() for name in route.tasks]
