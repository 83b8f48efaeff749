"""Common options of the commands, and the stream that they run on."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from emsworker.core.counted import plural

from .completing import complete_servers
from .context_keys import NO_COLOR, REDIS_URL, SERVER, TRACEBACK, URL, WIDE
from .output import print_done

if TYPE_CHECKING:
    from datetime import datetime

    from emsworker.admin import Admin
    from emsworker.admin.monitoring import Monitoring
    from emsworker.admin.standing import Standings
    from emsworker.app import Ems
    from emsworker.core.config import Settings
    from emsworker.store.engine.database import Database

# Numbers are bounded here, so that one that no server could take is refused in the command's own words.
COUNT = click.IntRange(1, 1_000_000)  # of what is read into memory and printed
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_CALL_TIMEOUT_S = 3.0
_REPLICA = "emsworker.cli.replica"
_READ_S = 10.0


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value == "":  # an unset variable of a shell; it must not mean the local stream
            raise click.BadParameter("it is empty; leave the option out, or give an address.")
        if value:
            ctx.meta[key] = value  # shared with the commands below, so the option may stand before or after them

    return callback


def as_far_as_allowed(read: Callable[[bool], T], details: str) -> T:
    """Return what is read with details; without them, with a note, if this user may not read them.

    Args:
        read: called with whether to read the details.
        details: names them.
    """
    from emsworker.core.errors import AccessDenied

    try:
        return read(True)
    except AccessDenied:
        found = read(False)
    click.echo(f"Left out: {details}, which this database user may not read (see `ems grants`).", err=True)
    return found


def say_age(age_s: float | None) -> None:
    """Tell beside a list how old its numbers are, if they were not read just now."""
    if age_s is not None:
        click.echo(
            f"As the beat sampled it {age_s:.0f} s ago, because there are many; --exact reads all now.", err=True
        )


def say_more(shown: int, count: int | None, what: str, which: str) -> None:
    """Tell beside a list that it is not all.

    Args:
        count: of all; ``None`` if it is not known, and more than are shown.
        what: is listed, in the singular.
        which: of them are shown.
    """
    if count is None or count > shown:
        of = "" if count is None else f" of {count:,}"
        click.echo(f"The {shown:,}{of} {plural(2, what)} {which}; --limit shows more.", err=True)


def first_of(rows: list[T], limit: int, what: str, which: str) -> list[T]:
    """Return the first rows of a list, and tell if there are more; see :func:`say_more`."""
    say_more(min(limit, len(rows)), len(rows), what, which)
    return rows[:limit]


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help page."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# Of every command; they may stand before it too.
stream_options = together(
    click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=_remember(URL),
        help="The stream: mysql://user:password@host:3306/database. EMS_URL does the same, and is never "
        "seen by other users of the machine.",
    ),
    click.option(
        "--server",
        metavar="NAME",
        expose_value=False,
        callback=_remember(SERVER),
        shell_complete=complete_servers,
        help="Only this one of several servers (EMS_SERVERS); main is that of EMS_URL.",
    ),
    click.option(
        "--redis-url",
        metavar="URL",
        expose_value=False,
        callback=_remember(REDIS_URL),
        help="A Redis for wake-ups and the redis allocator; EMS_REDIS_URL does the same.",
    ),
    click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        callback=_remember(TRACEBACK),
        help="Show where in the program an error came from.",
    ),
    click.option(
        "--no-color",
        is_flag=True,
        expose_value=False,
        callback=_remember(NO_COLOR),
        help="Print without colors; a non-empty NO_COLOR does the same.",
    ),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=_remember(WIDE),
    help="Print full ids and all columns on a terminal, however narrow it is.",
)
common_options = together(json_option, wide_option, stream_options)
"""Options of a command that prints something."""
most_option = click.option(
    "--limit", type=COUNT, default=1000, show_default=True, help="Maximum number, of each server; a note tells of more."
)
exact_option = click.option("--exact", is_flag=True, help="Read all now, however many there are.")
raw_option = click.option("--raw", is_flag=True, help="Write only the body, all of it, as it is stored.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


class CommandFailure(click.ClickException):
    """An error in one line for each problem, without a traceback."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines

    def show(self, file: Any = None) -> None:
        """Print ``Error: ...`` for every line."""
        from emsworker.core.terminal_text import escape_control

        for line in self.lines:
            click.echo(f"Error: {escape_control(line)}", err=True)


class WrongUsage(CommandFailure):
    """Wrong usage: settings, names or the app are wrong."""

    exit_code = 2


@dataclass(frozen=True)
class OpenStream:
    """The stream that a command works on; ``settings.url`` is always set.

    Args:
        main_url: of several servers, the address of the main one; by default there is one server.
        server: the name of this server.
    """

    settings: Settings
    main_url: str | None = None
    server: str = "main"

    @property
    def url(self) -> str:
        """The database's address."""
        assert self.settings.url is not None, "filled in by the functions that make a Stream"
        return self.settings.url

    @property
    def read_url(self) -> str | None:
        """The address of the replicas to read from; of several servers, only the main one has some."""
        return self.settings.read_url if self.server == "main" else None

    def database(self, *, check_schema: bool = True) -> Database:
        """The database, after a first connection, so that its problems are reported now.

        Raises:
            StoreUnavailable, AccessDenied, ServerUnsupported, SchemaMissing: it cannot be used.
        """
        from emsworker.core.errors import StoreUnavailable
        from emsworker.core.process.address import address_place
        from emsworker.core.url import redact_url
        from emsworker.store.engine.database import Database
        from emsworker.store.engine.schema import check_server, check_version

        database = Database(self.url, self.settings.connect_timeout_s, _CALL_TIMEOUT_S)
        try:
            database.call(check_server)
        except StoreUnavailable as error:
            raise StoreUnavailable(
                f"{error}; the address is {redact_url(self.url)} ({address_place(self.url)})"
            ) from error
        if check_schema:
            database.call(check_version)
        return database

    def unchecked(self, read_url: str | None = None) -> Database:
        """The database, or that of replicas, which is not asked yet; one that hangs is soon given up.

        Args:
            read_url: names the replicas.
        """
        from emsworker.core.url import impatient
        from emsworker.store.engine.database import Database
        from emsworker.store.engine.replica import ReplicaDatabase

        kind = Database if read_url is None else ReplicaDatabase
        return kind(impatient(read_url or self.url, _READ_S), self.settings.connect_timeout_s, _CALL_TIMEOUT_S)

    def admin(self) -> Admin:
        """For changes."""
        from emsworker.admin import Admin

        return Admin(self.database())

    def monitoring(self) -> Monitoring:
        """For looking; at a replica, if there is one."""
        from emsworker.admin.monitoring import Monitoring

        return Monitoring(self._only_reading())

    def standings(self) -> Standings:
        """For lists of all groups and topics; from a replica, if there is one."""
        from emsworker.admin.standing import Standings

        return Standings(self.reading())

    def looking(self) -> Admin:
        """For lists; from a replica, if there is one."""
        from emsworker.admin import Admin

        return Admin(self._only_reading())

    def _only_reading(self) -> Database:
        from emsworker.core.process.address import name_address

        if self.read_url is not None:
            name_address("EMS_READ_URL")
        return self.reading()

    def reading(self) -> Database:
        """The database to read from: a replica of `read_url`, whose lag is told; else the database itself."""
        from emsworker.store.engine.replica import ReplicaDatabase, replica_lag

        if self.read_url is None:
            return self.database()
        meta = click.get_current_context().meta
        database: ReplicaDatabase | None = meta.get(_REPLICA)
        if database is None:
            database = meta[_REPLICA] = ReplicaDatabase(self.read_url, self.settings.connect_timeout_s, _CALL_TIMEOUT_S)
            lag = database.call(replica_lag)
            click.echo(f"Read from EMS_READ_URL ({database.servers}): {lag}.", err=True)
        return database

    def app(self) -> Ems:
        """For sending."""
        from emsworker.app import Ems
        from emsworker.core.process.role import claim_role

        claim_role("producer")
        if not self.settings.servers:  # of several, one may be away
            self.database()
        return Ems(
            "ems", url=self.main_url or self.url, redis_url=self.settings.redis_url, servers=self.settings.servers
        )


def given_addresses() -> dict[str, Any]:
    """The settings that were given as options, by name."""
    meta = click.get_current_context().meta
    return {name: meta[key] for name, key in (("url", URL), ("redis_url", REDIS_URL)) if key in meta}


class EachServer(Exception):
    """The command is to be run for each of several servers; :mod:`.fan_out` does that.

    Args:
        names: of the servers.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        super().__init__("the command was not run for each server")


def open_main() -> OpenStream:
    """The stream that the options, the environment or the local servers give; of several servers, the main one.

    Raises:
        ConfigError: settings are wrong.
        StoreUnavailable: none of them names a stream.
    """
    from emsworker.core.config import Settings

    return stream_of(Settings.load(**given_addresses()))


def open_stream() -> OpenStream:
    """The stream of :func:`open_main`; of several servers, that of ``--server``, or the one that keeps the topic.

    Raises:
        ConfigError: settings are wrong, or there is no such server.
        StoreUnavailable: nothing names a stream, or a server that keeps the topic cannot be found.
        EachServer: there are several servers, and the command names neither one of them nor a topic.
    """
    main = open_main()
    if not main.settings.servers:
        return _on(main, None)
    context = click.get_current_context()
    topic = context.params.get("name" if _about_topics(context) else "topic")
    if SERVER not in context.meta and isinstance(topic, str):
        return _on(main, _server_of(main, topic))
    if SERVER not in context.meta:
        raise EachServer(list(wanted_servers(main)))
    return _on(main, context.meta[SERVER])


def open_databases() -> dict[str, Database]:
    """The stream to read from on each server by its name, or on the one that ``--server`` names.

    One alone is checked; of several, some may be away. The main server's is a replica, if there is one.
    """
    streams = open_wanted()
    if len(streams) == 1:
        return {name: stream.reading() for name, stream in streams.items()}
    return {name: stream.unchecked(stream.read_url) for name, stream in streams.items()}


def open_each() -> dict[str, Database]:
    """The stream on each server by its name, or on the one that ``--server`` names, some of which may be away."""
    return {name: stream.unchecked() for name, stream in open_wanted().items()}


def open_wanted() -> dict[str, OpenStream]:
    """The streams of all servers by name, or that of the one that ``--server`` names; none is asked."""
    main = open_main()
    return {name: _on(main, name) for name in wanted_servers(main)}


def open_single() -> OpenStream:
    """The stream of a command that cannot be run for several servers one after another.

    Raises:
        click.UsageError: there are several, and ``--server`` names none.
    """
    try:
        return open_stream()
    except EachServer as each:
        names = ", ".join(each.names)
        raise click.UsageError(f"There are several servers ({names}); say which one with --server.") from None


def _about_topics(context: click.Context) -> bool:
    return context.parent is not None and context.parent.info_name == "topics"


def _on(main: OpenStream, server: str | None) -> OpenStream:
    from dataclasses import replace

    urls = wanted_servers(main)
    if server is None:
        return main
    return OpenStream(replace(main.settings, url=urls.get(server, main.url)), main.url, server)


def _server_of(main: OpenStream, topic: str) -> str:
    """The server that keeps a topic; for one that there is not, the one on which it would be created."""
    from emsworker.app import Ems
    from emsworker.core.errors import UnknownTopic
    from emsworker.core.servers import parse_servers, place

    app = Ems("ems", url=main.url, servers=main.settings.servers, auto_create=False)
    try:
        return app.server_of(topic)
    except UnknownTopic:
        return place(topic, parse_servers(main.settings.servers))
    finally:
        app.close()


def stream_of(settings: Settings) -> OpenStream:
    """The stream of some settings; the local one, and a line that says so, if they name none.

    Raises:
        StoreUnavailable: no local stream is running.
    """
    from dataclasses import replace

    from emsworker.core.errors import StoreUnavailable
    from emsworker.local.stack import LocalStack

    if settings.url is not None:
        return OpenStream(settings)
    stack = LocalStack()
    if not stack.database.alive:
        raise StoreUnavailable(
            "there is no stream: neither --url nor EMS_URL is set, and no local stream is running in "
            f"{stack.folder}; set one of them, or run `ems local start`"
        )
    click.echo(f"Using the local stream in {stack.folder} (neither --url nor EMS_URL is set).", err=True)
    return OpenStream(replace(settings, url=stack.url, redis_url=settings.redis_url or stack.redis_url))


def wanted_servers(stream: OpenStream) -> dict[str, str]:
    """The addresses of all servers by name, or of the one that ``--server`` names.

    Raises:
        ConfigError: there is none of that name.
    """
    from emsworker.core.errors import ConfigError, Problem
    from emsworker.core.process.address import name_server
    from emsworker.core.servers import MAIN, parse_servers

    others = parse_servers(stream.settings.servers)
    for one in others:
        name_server(one.name, one.url)
    urls = {MAIN: stream.url} | {one.name: one.url for one in others}
    name = click.get_current_context().meta.get(SERVER)
    if name is None:
        return urls
    if name not in urls:
        fix = f"EMS_SERVERS names no such server; there are {', '.join(urls)}"
        raise ConfigError([Problem("--server", repr(name), fix)])
    return {name: urls[name]}


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone.

    Raises:
        click.UsageError: standard input is not a terminal, and ``--yes`` was not given.
        click.Abort: the answer was no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is not a terminal; give --yes to confirm.")
    click.confirm(question, abort=True, err=True)


def delete_named(what: str, name: str, delete: Callable[[str], object], yes: bool, as_json: bool) -> None:
    """Delete something by its name after a confirmation, and report it."""
    confirm(f"Delete the {what} {name}?", yes)
    delete(name)
    print_done({"deleted": name}, f"Deleted the {what} {name}.", as_json)


class Bar(Protocol):
    """Counter that :func:`progress` yields."""

    def update(self, n_steps: int) -> None:
        """Advance by this number of steps."""
        ...


class _NoBar:
    def update(self, n_steps: int) -> None:
        pass


@contextlib.contextmanager
def progress(label: str, length: int | None) -> Iterator[Bar]:
    """A progress bar on stderr, if that is a terminal.

    Args:
        label: what is being done.
        length: the number of steps, if it is known.
    """
    if not sys.stderr.isatty():
        yield _NoBar()
        return
    nothing: Iterator[int] = iter(())
    with click.progressbar(nothing, length=length, label=label, file=sys.stderr, show_pos=True) as bar:
        yield bar


OFFSETS = click.IntRange(1, (1 << 63) - 1)
NONE_OR_MORE = click.IntRange(0, (1 << 63) - 1)
PARTITION = click.IntRange(0, 65535)

DURATION = "a number of seconds, or 500ms, 10s, 5m, 2h, 7d"
TIME = "a time like 2026-01-31T12:00, in UTC unless it names a zone"


def duration_option(*names: str, help: str, default: str | None = None) -> Callable[[F], F]:
    """Return an option that takes a duration; its help ends with the form of durations."""
    more: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(*names, metavar="DURATION", callback=read_duration, help=f"{help}: {DURATION}.", **more)


def read_headers(given: Sequence[str]) -> dict[str, str]:
    """Return headers that were given as NAME=VALUE."""
    for item in given:
        if not item.partition("=")[0] or "=" not in item:
            raise click.BadParameter(f"{item!r} is not a header; write NAME=VALUE.", param_hint="--header")
    return {name: value for name, _, value in (item.partition("=") for item in given)}


def read_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Turn a duration on the command line into seconds."""
    from emsworker.core.durations import parse_duration

    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def read_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Turn a time on the command line into a datetime in UTC."""
    from emsworker.core.selection.parser import parse_time

    try:
        return None if value is None else parse_time(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time; write {TIME}.") from None


def read_moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | datetime | None:
    """Turn a duration or a time on the command line into seconds, or into a datetime in UTC."""
    from emsworker.core.durations import parse_duration
    from emsworker.core.selection.parser import parse_time

    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return parse_duration(value)
    try:
        return parse_time(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither {DURATION}, nor {TIME}.") from None
