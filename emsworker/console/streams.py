"""The stream that a command works on, of those that the options, the environment or an extension give."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from .context_keys import REDIS_URL, SERVER, URL
from .failures import EachServer

if TYPE_CHECKING:
    from datetime import datetime

    from emsworker.admin import Admin
    from emsworker.admin.monitoring import Monitoring
    from emsworker.admin.standing import Standings
    from emsworker.app import Ems
    from emsworker.core.config import Settings
    from emsworker.store import Database

_CALL_TIMEOUT_S = 3.0
_REPLICA = "emsworker.console.replica"
_READ_S = 10.0


@contextlib.contextmanager
def _noting_changes(database: Database, count: Callable[[object], int]) -> Iterator[None]:
    """Say that what this thread changes in the block is not in the audit, if it changes anything."""
    session, changed = database.thread_session(), False

    def note(result: object) -> None:
        nonlocal changed
        changed |= count(result) > 0

    session.before_commit = note
    try:
        yield
    finally:
        session.before_commit = None
        if changed:
            click.echo("Not recorded in the audit, which this database user may not write.", err=True)


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
        from emsworker.store import Database, check_server, check_version

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
        from emsworker.store import Database, ReplicaDatabase

        kind = Database if read_url is None else ReplicaDatabase
        return kind(impatient(read_url or self.url, _READ_S), self.settings.connect_timeout_s, _CALL_TIMEOUT_S)

    def now(self) -> datetime:
        """The time by the server's clock, in UTC."""
        from emsworker.store import server_now

        return self.database().call(server_now)

    def admin(self) -> Admin:
        """For changes."""
        from emsworker.admin import Admin

        return Admin(self.database())

    @contextlib.contextmanager
    def changing(self, action: str, target: str, count: Callable[[object], int] | None = None) -> Iterator[Admin]:
        """For a change that the audit tells of; see :meth:`recording`."""
        from emsworker.admin import Admin

        with self.recording(action, target, count) as database:
            yield Admin(database)

    @contextlib.contextmanager
    def recording(self, action: str, target: str, count: Callable[[object], int] | None = None) -> Iterator[Database]:
        """The database for a change that the audit tells of, as of one by the dashboard.

        A user who may not write the audit is told so when something was changed.

        Args:
            action, target, count: see :meth:`emsworker.admin.audit.Audit.record`.
        """
        from emsworker.admin.audit import Audit, count_changed, name_of_system_user
        from emsworker.store import may_insert

        database, count = self.database(), count or count_changed
        if not database.call(lambda session: may_insert(session, "ems_audit")):
            with _noting_changes(database, count):
                yield database
            return
        with Audit(database).record(name_of_system_user(), action, target, "by a command", count):
            yield database

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
        from emsworker.store import ReplicaDatabase, replica_lag

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
        return app.streams.locate(topic)[-1]
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
    from emsworker.core.extension import default_stream

    if settings.url is not None:
        return OpenStream(settings)
    found = default_stream()
    if found is None:
        raise StoreUnavailable(
            "there is no stream: neither --url nor EMS_URL is set, and no local stream is running; set one of them, or "
            "run `ems local start`"
        )
    click.echo(f"Using {found.place} (neither --url nor EMS_URL is set).", err=True)
    return OpenStream(replace(settings, url=found.url, redis_url=settings.redis_url or found.redis_url))


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
