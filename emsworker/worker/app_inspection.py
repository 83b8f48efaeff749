"""Loads an app in a short-lived process to read its settings and routes, and to check it against its stream.

The supervisor must not import task code, yet ``Ems(url=..., processes=...)`` in that code counts. The process answers
in a file without a name, because importing an app may print anything; nobody empties a pipe while an app of a thousand
subscriptions fills it, and what the app has forked may hold a pipe open for ever.

The process is forked, since the supervisor has imported all but the app by then: to start Python and to import that
again takes 200 ms of processor time. It is a new Python where a fork would differ from one: another thread of this
process may hold any lock, and ``--solo`` has imported the app as it was before a change.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.errors import (
    AppNotFound,
    ConfigError,
    EmsError,
    SchemaMissing,
    ServerUnsupported,
    StoreUnavailable,
    TlsError,
)
from emsworker.core.extension import default_url
from emsworker.core.process.scratch import open_scratch, read_scratch
from emsworker.core.process.signals import blocked, forget_helper, note_helper, pass_over_hangups, unblock
from emsworker.core.url import redact

if TYPE_CHECKING:
    from emsworker.app import Ems
    from emsworker.tasks.route import Route
    from emsworker.worker.child_spec import ChildSpec

_TIMEOUT_S = 120
_LOOK_S = 0.005
_MOST_FILES = 1 << 16
# These may pass without a change to the worker: the service manager starts it again.
_MAY_PASS = (StoreUnavailable, SchemaMissing, ServerUnsupported, TlsError)


@dataclass(frozen=True)
class Refusal:
    """The reason why an app cannot run on its stream now.

    Args:
        lines: one line for each problem.
        usage: true if the app, its settings or its privileges are wrong, so that another try would fail too.
    """

    lines: tuple[str, ...]
    usage: bool


@dataclass(frozen=True)
class RouteFacts:
    """The handlers of one group.

    Args:
        names: of its tasks, or of its subscription, with time limits of their own.
        timeout_s: of the group, or that which it will have.
        requires: the tags that a worker needs to run it.
    """

    topic: str
    group: str
    names: tuple[str, ...]
    timeout_s: float
    requires: tuple[str, ...] = ()


@dataclass(frozen=True)
class AppInspection:
    """Facts about a loaded app.

    Args:
        name: the app's name.
        settings: the app's own, with the environment's.
        handlers: the handlers of each topic and group, by name.
        broadcasts: the topics whose broadcasts it listens to.
        folder: the folder of its package's source code.
        refusal: why it cannot run; ``None`` if it can, or if neither it nor the caller names a stream.
        server: kind and version of the stream's server; empty if it is not known.
        idle: of several servers, those on which there is nothing for it to consume.
    """

    name: str
    settings: Settings
    handlers: tuple[RouteFacts, ...]
    broadcasts: tuple[str, ...]
    folder: Path | None
    refusal: Refusal | None
    server: str = ""
    idle: tuple[str, ...] = ()

    def consumed(self, spec: ChildSpec) -> list[RouteFacts]:
        """Return what a child consumes."""
        return [one for one in self.handlers if spec.wants(one.topic, one.group) and spec.has(one.requires)]

    def left(self, spec: ChildSpec) -> list[RouteFacts]:
        """Return what a child leaves to workers with other tags."""
        return [one for one in self.handlers if spec.wants(one.topic, one.group) and not spec.has(one.requires)]

    def heard(self, spec: ChildSpec) -> list[str]:
        """Return the topics whose broadcasts a child receives."""
        return [topic for topic in self.broadcasts if spec.wants(topic)]


def describe_app(
    path: str,
    environ: Mapping[str, str],
    url: str | None = None,
    topics: Sequence[str] = (),
    groups: Sequence[str] = (),
    *,
    with_beat: bool = True,
) -> AppInspection:
    """Load an app in another process, check it against its stream, and return its facts; nothing is written.

    Args:
        path: the value of ``-A``.
        environ: the environment to load it in.
        url: the stream's address, if it overrides the app's own.
        topics, groups: the values of ``-Q`` and ``--groups``.
        with_beat: the worker will run a beat, so its database user needs the privileges of one.

    Raises:
        AppNotFound: it cannot be loaded, for whatever reason; the message is one line.
    """
    chosen = json.dumps({"url": url, "topics": list(topics), "groups": list(groups), "with_beat": with_beat})
    with open_scratch(chosen) as asked, open_scratch() as answer, open_scratch() as noise:
        pid = _start(path, asked, answer, noise, environ)
        try:
            code = _wait(pid)
        finally:
            forget_helper(pid)
        lines, said = _lines(answer), _lines(noise)
    if code is None:
        raise AppNotFound(f"-A {path}: {_took_long(lines)}")
    facts = json.loads(lines[-1]) if lines else {}
    if not facts.keys() & {"error", "name"}:
        doing = "checking it against its stream" if facts else "importing it"
        last = said[-1] if said else "it said nothing"
        raise AppNotFound(f"-A {path}: {doing} ended the process (exit code {code}): {last}")
    return _read(facts)


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").strip().splitlines()


def _took_long(lines: Sequence[str]) -> str:
    """Name the step that was not finished in time."""
    if not lines:
        return f"importing it takes longer than {_TIMEOUT_S} s"
    loaded = json.loads(lines[0])
    handlers = counted(loaded["handlers"], "group")
    return (
        f"it was imported in {loaded['imported_s']:.1f} s, but checking its {handlers} against the stream takes longer "
        f"than {_TIMEOUT_S - loaded['imported_s']:.0f} s; is the server overloaded?"
    )


def _start(path: str, asked: IO[bytes], answer: IO[bytes], noise: IO[bytes], environ: Mapping[str, str]) -> int:
    with blocked():  # or a stop between its start and note_helper would leave it behind
        start = _fork if _can_fork(path) else _spawn
        pid = start(path, asked, answer, noise, environ)
        note_helper(pid)
    return pid


def _can_fork(path: str) -> bool:
    """Tell whether a fork would see what a new process sees: nothing of a thread, and nothing of the app so far."""
    return threading.active_count() == 1 and path.partition(":")[0].partition(".")[0] not in sys.modules


def _spawn(path: str, asked: IO[bytes], answer: IO[bytes], noise: IO[bytes], environ: Mapping[str, str]) -> int:
    for passed in (asked, answer):
        os.set_inheritable(passed.fileno(), True)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", __spec__.name, path, str(asked.fileno()), str(answer.fileno())],
        environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, noise.fileno(), 2),
        ],
    )


def _fork(path: str, asked: IO[bytes], answer: IO[bytes], noise: IO[bytes], environ: Mapping[str, str]) -> int:
    from emsworker import loader  # noqa: F401 - here, not in the fork: the supervisor needs the same
    from emsworker.worker import placement, preflight  # noqa: F401

    sys.stderr.flush()  # what is left there would be the fork's words
    if pid := os.fork():
        return pid
    code: object = 1
    try:
        _be_like_new(dict(environ), noise.fileno())
        _answer(path, asked.fileno(), answer.fileno())
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _be_like_new(environ: Mapping[str, str], noise: int) -> None:
    """Give a forked process the environment, the standard streams and the empty caches of a new one."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, number in ((nothing, 0), (nothing, 1), (noise, 2)):
        os.dup2(descriptor, number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, errors="backslashreplace", closefd=False) for number, mode in enumerate("rww")
    )
    os.environ.clear()
    os.environ.update(environ)
    sys.dont_write_bytecode = bool(environ.get("PYTHONDONTWRITEBYTECODE"))
    importlib.invalidate_caches()  # a folder may have changed since it was listed


def _close_all_but(*descriptors: int) -> None:
    """Close what was handed on to the worker: the app may fork what lives on, and would hold it open."""
    first = 3
    for descriptor in (*sorted(descriptors), _MOST_FILES):
        os.closerange(first, descriptor)
        first = descriptor + 1


def _wait(pid: int) -> int | None:
    """Wait for the end of a process and return its exit code; ``None`` if it took too long and was killed."""
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_LOOK_S)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _read(answer: dict[str, Any]) -> AppInspection:
    if "error" in answer:
        raise AppNotFound(answer["error"])
    values = answer["settings"]
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    settings = Settings(**given)
    handlers = tuple(
        RouteFacts(**{**one, "names": tuple(one["names"]), "requires": tuple(one["requires"])})
        for one in answer["handlers"]
    )
    folder = Path(answer["folder"]) if answer["folder"] else None
    refusal = Refusal(tuple(answer["refusal"]["lines"]), answer["refusal"]["usage"]) if answer["refusal"] else None
    broadcasts = tuple(answer["broadcasts"])
    idle = tuple(answer["idle"])
    return AppInspection(answer["name"], settings, handlers, broadcasts, folder, refusal, answer["server"], idle)


def _describe(
    path: str, url: str | None, topics: Sequence[str], groups: Sequence[str], with_beat: bool, out: IO[str]
) -> dict[str, Any]:
    began = time.monotonic()
    from emsworker.loader import load_app
    from emsworker.tasks.requirements import requires_of

    try:
        app = load_app(path)
    except EmsError as error:
        return {"error": str(error)}
    # If what follows takes too long, the command says so, instead of blaming the import.
    loaded = {"handlers": len(app.registry.routes), "imported_s": time.monotonic() - began}
    print(json.dumps(loaded), file=out, flush=True)
    module = sys.modules[path.partition(":")[0].partition(".")[0]]
    source = getattr(module, "__file__", None)
    folder = str(Path(source).resolve().parent) if source and hasattr(module, "__path__") else None
    facts: dict[str, Any] = {
        "name": app.name,
        "settings": asdict(app.settings),
        "folder": folder,
    }
    facts["broadcasts"] = sorted({route.topic for route in app.registry.broadcasts.values()})
    checked = _check(app, path, url, topics, groups, with_beat=with_beat)
    facts["handlers"] = [
        {"topic": topic, "group": group, "names": _names(app.settings, route)}
        | {"timeout_s": checked.timeouts.get((topic, group), app.settings.timeout_s), "requires": requires_of(route)}
        for (topic, group), route in sorted(app.registry.routes.items())
    ]
    return facts | {"refusal": checked.refusal, "server": checked.server, "idle": checked.idle}


def _names(settings: Settings, route: Route) -> list[str]:
    """The names of a group's handlers, with time limits that are not the app's."""
    names = []
    for handler in route.handlers:
        options = handler.options
        own = {
            "timeout": options.timeout_s,
            "soft": options.soft_time_limit_s if options.soft_time_limit_s != settings.soft_time_limit_s else None,
            "hard": options.hard_time_limit_s if options.hard_time_limit_s != settings.hard_time_limit_s else None,
        }
        limits = ", ".join(f"{name} {seconds:g} s" for name, seconds in own.items() if seconds is not None)
        names.append(f"{handler.name} ({limits})" if limits else handler.name)
    return names


@dataclass
class _Checked:
    """Why an app is refused, the server's version, the groups' timeouts, and servers with nothing for the app."""

    refusal: dict[str, Any] | None = None
    server: str = ""
    timeouts: dict[tuple[str, str], float] = field(default_factory=dict)
    idle: list[str] = field(default_factory=list)


def _check(
    app: Ems, path: str, url: str | None, topics: Sequence[str], groups: Sequence[str], *, with_beat: bool
) -> _Checked:
    """Check an app against its stream."""
    from emsworker.core.codec import check_serializers
    from emsworker.worker.placement import expected_on, served_on, server_urls
    from emsworker.worker.preflight import (
        WORKER,
        WORKER_WITH_BEAT,
        check_app,
        check_streams,
        chosen_routes,
        group_timeouts,
        server_product,
    )

    needs = WORKER_WITH_BEAT if with_beat else WORKER
    found_out = _Checked()
    try:
        check_serializers(app.settings.serializer, app.settings.accept)
        routes = chosen_routes(app, path, topics, groups)
        url = url or app.settings.url or default_url()
        if url is None:
            return found_out  # the command has a better message for that
        heard = {route.topic for route in app.registry.broadcasts.values() if not topics or route.topic in topics}
        databases = check_streams(server_urls(app.settings, url), app.settings, needs)
        called = {one.task.topic for one in app.registry.schedules.values()}
        names = sorted({route.topic for route in routes} | heard | called)
        found = {name: served_on(database, names) for name, database in databases.items()}
        for name, database in databases.items():
            found_out.server = found_out.server or server_product(database)
            here = {topic for topic in names if expected_on(name, app.settings, found, topic)}
            check_app(
                app,
                [route for route in routes if route.topic in here],
                sorted(heard & here),
                database,
                called & here,
                needs,
            )
            found_out.timeouts |= database.call(group_timeouts)
            if not here:
                found_out.idle.append(name)
    except EmsError as error:
        lines = [str(problem) for problem in error.problems] if isinstance(error, ConfigError) else [str(error)]
        found_out.refusal = {"lines": [redact(line) for line in lines], "usage": not isinstance(error, _MAY_PASS)}
    return found_out


def _answer(path: str, asked: int, answer: int) -> NoReturn:
    """Be the process that reads the facts, and end it."""
    _close_all_but(asked, answer)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the workers' children do it
    for number in (signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C reaches the command, which ends us
    pass_over_hangups()
    unblock()
    with os.fdopen(answer, "w", encoding="utf-8") as out:
        chosen = json.loads(read_scratch(asked))
        print(json.dumps(_describe(path, **chosen, out=out)), file=out, flush=True)
    os._exit(0)  # an app may have started threads


if __name__ == "__main__":
    _answer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
