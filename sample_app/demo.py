"""The whole sample in one command, from a bare machine to a verified result: ``./dev demo``."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, NoReturn

import click

from emsworker import Ems, EmsError
from emsworker.core.extension import extensions
from emsworker.core.servers import MAIN
from emsworker.local import LocalDatabase, Redis, ServerFailed, ServerMissing
from emsworker.store.engine.database import Database as StoreDatabase
from emsworker.store.engine.schema import migrate
from sample_app import config, night, report, tables
from sample_app.config import ConfigFailed
from sample_app.data import DataMissing
from sample_app.drain import Drain, DrainFailed
from sample_app.expected import Expected, expect
from sample_app.night import NightFailed
from sample_app.processes import Process, start_dashboard
from sample_app.publish import prepare, publish
from sample_app.settings import DEFAULT_SEED, NEW_TITLE, NOTICE_DELAY_S, PARTITIONS, PLACES, SEED_VARIABLE
from sample_app.tables import Connection
from sample_app.verify import Outcome, verify, verify_rehearsal, verify_summary, verify_title

# In the demo only: nobody wants to wait ten seconds for a second attempt.
_LADDER, _MAX_ATTEMPTS = "200ms 500ms 1s", 4
_KEPT_VARIABLES = ("EMS_MYSQL_ROOT", "EMS_CACHE_DIR")
_BUFFERS_MB = 512  # of all servers
_AGAIN = 2000
_SHOWN = 20
_STOP_S = 10.0


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    limit: int | None
    server: Literal["mariadb", "mysql"] | None
    allocator: str
    seed: int
    keep: bool
    processes: int
    threads: int
    pipeline: bool
    web: bool
    servers: int


@click.command()
@click.option("--limit", type=click.IntRange(min=1), help="Take only so many flights, for a quick run.")
@click.option("--server", type=click.Choice(["mariadb", "mysql"]), help="The server; by default what is installed.")
@click.option(
    "--allocator", type=click.Choice(["mysql", "redis"]), default="mysql", show_default=True, help="Who gives offsets."
)
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Decides which notices fail.")
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True, help="Processes of a worker.")
@click.option("--threads", type=click.IntRange(min=1), default=4, show_default=True, help="Threads of a process.")
@click.option("--keep", is_flag=True, help="Keep the data folder, with the logs.")
@click.option("--pipeline", is_flag=True, help="Run the jobs of the data pipeline, too; needs Spark.")
@click.option("--web", is_flag=True, help="Show the flights in the dashboard while they are drained.")
@click.option(
    "--servers",
    type=click.IntRange(1, 1 + len(PLACES)),
    default=1,
    show_default=True,
    help="Spread the topics over so many servers.",
)
def main(**options: object) -> None:
    """Send a year of flights through a private stream, kill a worker on the way, and check every number."""
    signal.signal(signal.SIGTERM, _end)
    if options["pipeline"] and options["servers"] != 1:
        raise click.UsageError("--pipeline reads one server; leave --servers out.")
    for name in [name for name in os.environ if name.startswith("EMS_") and name not in _KEPT_VARIABLES]:
        del os.environ[name]  # the demo has a stream of its own, and settings of its own
    try:
        sys.exit(_run(Options(**options)))  # type: ignore[arg-type]
    except (EmsError, ServerMissing, ServerFailed, DataMissing, DrainFailed, NightFailed, ConfigFailed) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(1)


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)  # by way of every `finally`


def _run(options: Options) -> int:
    began = time.monotonic()
    with _folder(options.keep) as folder, _stream(folder, options) as environment:
        app = Ems(
            "sample-demo",
            url=environment["EMS_URL"],
            servers=environment["EMS_SERVERS"],
            redis_url=environment.get("EMS_REDIS_URL"),
            allocator=options.allocator,
            ladder=_LADDER,
            max_attempts=_MAX_ATTEMPTS,
        )
        with closing(app), ExitStack() as stack:
            for server in app.streams.servers.values():
                StoreDatabase(server.url).call(lambda session: migrate(session, extensions().values()))
            connections = [
                stack.enter_context(closing(tables.connect(server.url))) for server in app.streams.servers.values()
            ]
            stack.enter_context(_dashboard(options, environment, folder))
            tables.create(connections)
            prepare(app)
            if options.servers > 1:
                click.echo(f"placed: {', '.join(f'{name} on {app.streams.locate(name)[-1]}' for name in PARTITIONS)}")
            click.echo(f"the stream is set up and running after {time.monotonic() - began:.1f} s")
            wrong = _demonstrate(app, connections, options, environment, folder)
    for line in wrong[:_SHOWN]:
        click.echo(f"WRONG: {line}", err=True)
    if len(wrong) > _SHOWN:
        click.echo(f"WRONG: and {len(wrong) - _SHOWN:,} more", err=True)
    click.echo(f"all of it took {time.monotonic() - began:.1f} s: {'WRONG' if wrong else 'everything is equal'}")
    return 1 if wrong else 0


@contextmanager
def _folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ems-demo-"))
    try:
        yield folder
    finally:
        if keep:
            click.echo(f"kept: {folder} (to look around: EMS_LOCAL_DIR={folder} ems local start)")
        else:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _stream(folder: Path, options: Options) -> Iterator[dict[str, str]]:
    """Private servers, and Redis if it is to allocate; yields the environment of all that is to use them."""
    memory = {"innodb-buffer-pool-size": f"{_BUFFERS_MB // options.servers}M"}
    databases = {
        name: LocalDatabase(folder / ("database" if name == MAIN else name), options.server, options=memory)
        for name in (MAIN, *PLACES)[: options.servers]
    }
    redis = Redis(folder / "redis")
    try:
        for name, database in databases.items():
            database.start()
            which = f" as server {name}" if options.servers > 1 else ""
            click.echo(
                f"started a private {database.kind} {database.version}{which}, every commit on disk, "
                f"in {database.folder}"
            )
        others = [f"{name}={database.url} {PLACES[name]}" for name, database in databases.items() if name != MAIN]
        environment = os.environ | {
            "EMS_URL": databases[MAIN].url,
            "EMS_SERVERS": " ".join(others),
            "EMS_ALLOCATOR": options.allocator,
            "EMS_LADDER": _LADDER,
            "EMS_MAX_ATTEMPTS": str(_MAX_ATTEMPTS),
            SEED_VARIABLE: str(options.seed),
        }
        if options.allocator == "redis":
            redis.start()
            environment["EMS_REDIS_URL"] = redis.url
            click.echo(f"started a private redis {redis.version}, which hands out the offsets")
        yield environment
    finally:
        redis.stop()
        for database in databases.values():
            database.stop()


@contextmanager
def _dashboard(options: Options, environment: dict[str, str], folder: Path) -> Iterator[None]:
    """The dashboard, if it is wanted; on a terminal it stays until Enter is pressed."""
    if not options.web:
        yield
        return
    process = start_dashboard(environment, folder)
    try:
        click.echo(_address(process))
        yield
        if sys.stdin.isatty():
            click.prompt("Press Enter to stop the dashboard and its stream", "", show_default=False, prompt_suffix="")
    finally:
        process.terminate()
        if process.wait(_STOP_S) is None:
            process.kill_group()


def _address(process: Process) -> str:
    """Wait until the dashboard listens; return the line with its address.

    Raises:
        DrainFailed: it has ended instead.
    """
    while True:
        for line in process.last_words().splitlines():
            if "http://" in line:
                return line
        if not process.running:
            raise DrainFailed(f"the dashboard ended:\n{process.last_words()}")
        time.sleep(0.05)


def _demonstrate(
    app: Ems, connections: Sequence[Connection], options: Options, environment: dict[str, str], folder: Path
) -> list[str]:
    """Publish, drain, compare; returns everything that is wrong."""
    expected = expect(options.limit, options.seed, _MAX_ATTEMPTS)
    wrong = _publish(app, options.limit, expected)
    drain = Drain(connections, environment, folder, report.say, options.processes, options.threads)
    try:
        read = len(expected.flights) + len(expected.malformed)
        sent_on, followed = len(expected.events) + len(expected.notifications), expected.rotating_flights
        passed, deliveries = 4 * read + sent_on, 3 * read + sent_on + followed
        with report.progress("drained", passed) as progress:
            drain.run(passed, progress)
        click.echo(
            f"drained {deliveries:,} deliveries to 6 groups in {drain.seconds:.1f} s, the kill included: "
            f"{deliveries / drain.seconds:,.0f} deliveries/s, {len(expected.flights) / drain.seconds:,.0f} flights/s"
        )
        _change_title(app, connections[:1], options)
        slot, rehearsed = _see_the_night(app, connections)
        wrong += drain.stop()
    finally:
        drain.close()
    report.print_tables(connections)
    of_night = verify_summary(connections, expected, slot)
    of_night += verify_title(connections, slot, NEW_TITLE, 2 * options.processes)
    of_night += verify_rehearsal(connections, expected, rehearsed)
    wrong += _compare(connections, expected, of_night)
    if options.pipeline:
        from sample_app import lake

        wrong += lake.show(app, expected, options.limit, folder)
    return wrong


def _change_title(app: Ems, connections: Sequence[Connection], options: Options) -> None:
    clients, processes = options.processes * options.threads, 2 * options.processes
    workers = {name: clients for name in ("worker-2", "worker-3")}
    seconds = config.announce(app, connections, NEW_TITLE, workers, processes)
    click.echo(f"changed the title of the summary in all {processes} worker processes within {seconds * 1000:.0f} ms")


def _see_the_night(app: Ems, connections: Sequence[Connection]) -> tuple[datetime, datetime]:
    """Wait for the nightly summary and for its rehearsal; return the slots of both."""
    slot = night.bring_forward(app)
    night.wait_for_summary(connections, slot)
    click.echo(f"brought the nightly summary forward to {slot:%H:%M:%S} UTC: it came, under the new title")
    rehearsed = night.rehearse_next(app, slot)
    night.wait_for_flows(connections)
    click.echo("rehearsed the summary of the next night: it was refused at its end, and undone")
    return slot, rehearsed


def _publish(app: Ems, limit: int | None, expected: Expected) -> list[str]:
    began = time.monotonic()
    flights, malformed = len(expected.flights), len(expected.malformed)
    with report.progress("published", flights + malformed) as progress:
        for sent, _ in publish(app, limit):
            progress(sent)
    seconds = time.monotonic() - began
    click.echo(
        f"published {flights:,} flights, and {malformed} malformed rows among them, in {seconds:.1f} s: "
        f"{(flights + malformed) / seconds:,.0f} messages/s"
    )
    again = min(_AGAIN, flights)
    doubled = sum(created for _, created in publish(app, again))
    click.echo(f"published the first {again:,} again, as after a crash of the publisher: {doubled} were written twice")
    return [f"{doubled} flights were written twice, and should be 0"] if doubled else []


def _compare(connections: Sequence[Connection], expected: Expected, of_night: Outcome) -> list[str]:
    outcome = verify(connections, expected)
    differences = outcome.differences + of_night.differences
    if not differences:
        report.print_what_is_right(expected, NOTICE_DELAY_S, _MAX_ATTEMPTS)
    click.echo(
        f"{outcome.compared + of_night.compared:,} numbers and ids compared with the CSV, "
        f"{len(differences):,} differences"
    )
    return differences


if __name__ == "__main__":
    main()
