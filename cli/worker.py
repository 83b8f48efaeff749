"""``ems worker`` and ``ems beat``."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.failures import CommandFailure, WrongUsage
from emsworker.console.http import http_option, listen
from emsworker.console.options import stream_options, together
from emsworker.console.streams import OpenStream, given_addresses, open_main, stream_of, wanted_servers
from emsworker.core.counted import counted, plural
from emsworker.core.errors import ConfigError, EmsError
from emsworker.core.ids import CLIENT_NAME
from emsworker.core.process import forks
from emsworker.core.process.role import claim_role
from emsworker.core.tags import named, read_tags
from emsworker.observe.repeats import REPEATS

from .settings import override_option

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping

    from emsworker.observe.http import Route
    from emsworker.store import Database
    from emsworker.worker.app_inspection import AppInspection
    from emsworker.worker.child_spec import ChildSpec
    from emsworker.worker.supervisor import Supervisor

log = logging.getLogger(__name__)

_CALL_TIMEOUT_S = 3.0
_NOT_SOLO = ("processes", "threads", "max_tasks_per_child", "max_memory_per_child", "http")


def _read_name(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not 0 < len(value) <= CLIENT_NAME:
        raise click.BadParameter(f"{len(value)} characters; write 1 to {CLIENT_NAME}.")
    return value


log_options = together(
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="The least important messages that are logged, to standard error.",
    ),
    click.option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="text: lines for people; json: one JSON object on each line, with the fields of its message.",
    ),
    click.option(
        "--log-repeats",
        type=click.IntRange(0, 1_000_000),
        default=REPEATS,
        show_default=True,
        metavar="N",
        help="Warnings and errors of one kind in a minute; the others are counted. 0: log all.",
    ),
)


def _names(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def _tags(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    try:
        return read_tags(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command()
@click.option(
    "-A",
    "--app",
    "app_path",
    required=True,
    envvar="EMS_APP",
    metavar="MODULE[:NAME]",
    help="The module with the app, as it is imported from here; EMS_APP does the same.",
)
@click.option(
    "-Q",
    "--topics",
    multiple=True,
    callback=_names,
    metavar="A,B",
    shell_complete=complete_topics,
    help="Only these topics; all that the app handles.",
)
@click.option(
    "--groups",
    multiple=True,
    callback=_names,
    metavar="A,B",
    shell_complete=complete_groups,
    help="Only these groups; broadcasts are received regardless.",
)
@click.option(
    "--tags",
    callback=_tags,
    metavar="A,B",
    help="What this machine has: groups that require tags are run only by workers with all of them.",
)
@click.option(
    "--solo", is_flag=True, help="Run handlers in one thread that has the terminal, for a debugger; no limits."
)
@override_option("processes", "-p")
@override_option("threads", "-t")
@override_option("max_tasks_per_child", metavar="N")
@override_option("max_memory_per_child", metavar="MIB")
@click.option("-n", "--name", callback=_read_name, help="Shown in `ems clients`; the name of this machine.")
@click.option("--no-beat", is_flag=True, help="Leave the beat's services to others.")
@click.option("--reload", is_flag=True, help="Restart when a Python file changes, for development.")
@http_option
@log_options
@click.option("--log-done", is_flag=True, help="Log every message that is done, with its run time, at level info.")
@stream_options
@click.pass_context
def worker(
    ctx: click.Context,
    app_path: str,
    topics: tuple[str, ...],
    groups: tuple[str, ...],
    tags: tuple[str, ...],
    solo: bool,
    processes: int | None,
    threads: int | None,
    max_tasks_per_child: int | None,
    max_memory_per_child: int | None,
    name: str | None,
    no_beat: bool,
    reload: bool,
    http: tuple[str, int] | None,
    log_level: str,
    log_format: str,
    log_repeats: int,
    log_done: bool,
) -> None:
    """Run a worker: processes that run an app's tasks and subscriptions.

    Prints one line when all processes are ready. SIGTERM or Ctrl-C stops it: running messages finish, the rest goes
    back at once, exit code 0. A second one, or SIGQUIT, gives back what runs, too. SIGHUP restarts
    the processes gracefully.

    With --solo there is one process and one thread, which has the terminal: breakpoint() works in a handler, nothing
    has a time limit, and Ctrl-C gives back what runs.
    """
    from emsworker.observe.logs import configure_logging
    from emsworker.worker.child_spec import ChildSpec

    _check_solo(ctx)
    claim_role("worker")
    configure_logging(log_level, log_format, log_repeats)
    facts, stream = _load(app_path, topics, groups, reload, no_beat=no_beat)
    spec = ChildSpec(
        app=app_path,
        topics=topics,
        groups=groups,
        threads=1 if solo else threads,
        process_id="",
        name=name or socket.gethostname(),
        log_level=log_level,
        parent=-1,
        url=stream.url,
        redis_url=stream.settings.redis_url,
        max_tasks=max_tasks_per_child,
        max_memory_mib=max_memory_per_child,
        log_format=log_format,
        log_done=log_done,
        log_repeats=log_repeats,
        tags=tags,
    )
    _check_work(facts, spec)
    if solo:
        _run_solo(ctx, stream, spec, facts)
    count = processes or stream.settings.processes or _processors()
    ctx.exit(_supervise(stream, spec, count, facts, no_beat=no_beat, reload=reload, http=http))


def _load(
    app: str, topics: tuple[str, ...], groups: tuple[str, ...], reload: bool, *, no_beat: bool
) -> tuple[AppInspection, OpenStream]:
    """Load the app in a process of its own, and return what it declares and the stream that it names."""
    from dataclasses import replace

    from emsworker.worker.app_inspection import describe_app

    given = given_addresses()
    os.environ.update({f"EMS_{key.upper()}": value for key, value in given.items()})  # for the app, as it is loaded
    if reload:
        # Python trusts a compiled file whose time, in whole seconds, and size fit: two quick edits would be one.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    facts = describe_app(app, os.environ, given.get("url"), topics, groups, with_beat=not no_beat)
    stream = stream_of(replace(facts.settings, **given))
    if facts.refusal is not None:
        raise (WrongUsage if facts.refusal.usage else CommandFailure)(list(facts.refusal.lines))
    return facts, stream


def _database(stream: OpenStream) -> Database:
    """The main server's stream, which has been checked already."""
    return _open(stream, stream.url)


def _databases(stream: OpenStream) -> dict[str, Database]:
    """The stream on each server that is wanted, by its name."""
    return {name: _open(stream, url) for name, url in wanted_servers(stream).items()}


def _open(stream: OpenStream, url: str) -> Database:
    from emsworker.store import Database

    return Database(url, stream.settings.connect_timeout_s, _CALL_TIMEOUT_S)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _supervise(
    stream: OpenStream,
    spec: Any,
    count: int,
    facts: AppInspection,
    *,
    no_beat: bool,
    reload: bool,
    http: tuple[str, int] | None,
) -> int:
    from emsworker.worker.banner import log_worker
    from emsworker.worker.supervisor import Supervisor

    database = _database(stream)
    threads = spec.threads or stream.settings.threads
    log_worker(spec, facts, stream.settings, count, with_beat=not no_beat)

    def tell_ready(pids: list[int]) -> None:
        processes = f"{plural(len(pids), 'process')} {', '.join(map(str, pids))}"
        with_ = f"{len(pids)} x {counted(threads, 'thread')} ({processes})"
        _announce(spec.log_format, f"Ready: {facts.name} with {with_} {_work_of(facts, spec)}.")

    def run(spec: ChildSpec) -> Supervisor:
        return Supervisor(
            spec,
            count,
            _databases(stream),
            stream.settings,
            topics=sorted({one.topic for one in facts.consumed(spec)} | set(facts.heard(spec))),
            idle=facts.idle,
            with_beat=not no_beat,
            patient=reload,
            on_ready=tell_ready,
        )

    def go(supervisor: Supervisor) -> int:
        return _run_reloading(supervisor, facts) if reload else supervisor.run()

    return go(run(spec)) if http is None else _serve(http, run, go, spec, database)


def _work_of(facts: AppInspection, spec: ChildSpec) -> str:
    """Return in words what a worker consumes."""
    routes = ", ".join(f"{one.topic}/{one.group}" for one in facts.consumed(spec))
    broadcasts = ", ".join(facts.heard(spec))
    does = [f"consumes {routes}"] if routes else []
    does += [f"receives broadcasts of {broadcasts}"] if broadcasts else []
    return " and ".join(does)


def _check_work(facts: AppInspection, spec: ChildSpec) -> None:
    """Refuse to run a worker that has nothing to run because of its tags."""
    if not facts.consumed(spec) and not facts.heard(spec):
        left = "; ".join(f"{one.topic}/{one.group} requires {named(one.requires)}" for one in facts.left(spec))
        raise WrongUsage([f"this worker has nothing to run: {left}; start it with --tags, on a machine that has them"])


def _check_solo(ctx: click.Context) -> None:
    """Refuse options that a worker of one process has no use for."""
    for name in _NOT_SOLO if ctx.params["solo"] else ():
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} means nothing with --solo; leave one of them out.")


def _run_solo(ctx: click.Context, stream: OpenStream, spec: ChildSpec, facts: AppInspection) -> NoReturn:
    """Run a worker in this process, and end it; with ``--reload`` start it anew after a change."""
    import uuid
    from dataclasses import replace

    from emsworker.beat.leader import Beats
    from emsworker.worker.banner import log_worker
    from emsworker.worker.solo import Solo

    databases, no_beat = _databases(stream), ctx.params["no_beat"]
    if len(databases) > 1:
        raise click.UsageError(f"--solo consumes from one server; choose it with --server ({', '.join(databases)}).")
    (server,) = databases
    spec = replace(spec, process_id=uuid.uuid4().hex, server=server, max_tasks=0, max_memory_mib=0)
    log_worker(spec, facts, stream.settings, 1, with_beat=not no_beat, solo=True)
    beats = None if no_beat else Beats(databases, stream.settings, lambda name, error: solo.request_stop())
    ready = f"Ready: {facts.name} alone in process {os.getpid()} {_work_of(facts, spec)}."
    solo = Solo(spec, beats, lambda: _announce(spec.log_format, ready))
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)  # as for a child
    if not ctx.params["reload"]:
        ctx.exit(solo.run())
    changed = forks.Event()

    def note(path: Path) -> None:
        changed.set()
        solo.request_restart()

    with _reloading(facts, note):
        code = solo.run()
        if solo.restarts:
            _start_anew(ctx, spec, changed)
    ctx.exit(code)


def _start_anew(ctx: click.Context, spec: ChildSpec, changed: threading.Event) -> NoReturn:
    """Replace this process by a new one with the same command line, once the app can be loaded."""
    while True:
        changed.clear()
        try:
            _load(spec.app, spec.topics, spec.groups, True, no_beat=ctx.params["no_beat"])
            break
        except (CommandFailure, EmsError, ConfigError) as error:
            click.echo(f"Error: {error}\nWaiting for the next change.", err=True)
            changed.wait()
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _serve(
    http: tuple[str, int],
    make: Callable[[ChildSpec], Supervisor],
    run: Callable[[Supervisor], int],
    spec: ChildSpec,
    database: Database,
) -> int:
    """Run a worker and serve its probes and metrics."""
    from dataclasses import replace

    from emsworker.observe.scaling import Scaling
    from emsworker.worker.probes import metrics_folder, worker_routes

    with metrics_folder() as folder:
        supervisor = make(replace(spec, metrics=str(folder)))
        routes = {**worker_routes(supervisor.health, folder, supervisor.beat), "scale": Scaling(database).scale}
        with _probes_at(http, routes):
            return run(supervisor)


@contextlib.contextmanager
def _probes_at(http: tuple[str, int], routes: Mapping[str, Route]) -> Iterator[None]:
    with listen(http, routes) as server:
        log.info("probes and metrics at %s", server.url)
        yield


def _announce(log_format: str, text: str) -> None:
    """Print a line that scripts wait for; as JSON if the log is JSON."""
    if log_format == "json":
        from emsworker.observe.logs import JsonFormatter

        values = {"name": __name__, "levelname": "INFO", "levelno": logging.INFO, "msg": text}
        text = JsonFormatter().format(logging.makeLogRecord(values))
    click.echo(text)
    sys.stdout.flush()


def _run_reloading(supervisor: Supervisor, facts: AppInspection) -> int:
    with _reloading(facts, lambda path: supervisor.request_restart()):
        return supervisor.run()


@contextlib.contextmanager
def _reloading(facts: AppInspection, on_change: Callable[[Path], None]) -> Iterator[None]:
    """Watch the Python files of an app in the block."""
    from emsworker.worker.reloader import Reloader

    folders = {Path.cwd(), *([facts.folder] if facts.folder is not None else [])}
    reloader = Reloader(folders, on_change)
    reloader.start()
    try:
        yield
    finally:
        reloader.stop()


@click.command()
@http_option
@log_options
@stream_options
@click.pass_context
def beat(ctx: click.Context, http: tuple[str, int] | None, log_level: str, log_format: str, log_repeats: int) -> None:
    """Run the beat alone: background maintenance.

    Recovery of work whose worker died or hangs, and sweeping away old clients. Every worker does them too, unless it
    was started with --no-beat; several beats may run, one leads. SIGTERM or Ctrl-C stops it: it resigns, so that
    another leads at once.
    """
    from emsworker.beat.leader import Beats, run_beat
    from emsworker.core.errors import AccessDenied
    from emsworker.core.process.outage import Outage
    from emsworker.observe.logs import configure_logging
    from emsworker.worker.banner import log_beat
    from emsworker.worker.preflight import BEAT, check_streams, server_product
    from emsworker.worker.probes import beat_routes

    claim_role("beat")
    configure_logging(log_level, log_format, log_repeats)
    stream = open_main()
    try:
        checked = list(check_streams(wanted_servers(stream), stream.settings, BEAT).values())
    except AccessDenied as error:
        raise WrongUsage([str(error)]) from None
    server = server_product(checked[0])
    for one in checked:
        one.thread_session().close()
    log_beat(stream.settings, server)
    databases = _databases(stream)
    beats = Beats(databases, stream.settings, lambda name, error: None)
    outages = {name: Outage(log, database.servers) for name, database in databases.items()}
    with contextlib.nullcontext() if http is None else _probes_at(http, beat_routes(beats.health)):
        ctx.exit(run_beat(beats, outages, lambda: _announce(log_format, "Ready: the beat is running.")))
