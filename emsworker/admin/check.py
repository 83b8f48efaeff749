"""``ems check``: checks everything in the environment that could break a promise of EMS, in one pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from emsworker.admin.servers import Servers
from emsworker.core.config import Settings, unknown_variables
from emsworker.core.counted import counted, seconds_text
from emsworker.core.durations import format_duration
from emsworker.core.errors import AccessDenied, ConfigError, DiskFull, EmsError, StoreError, repr_of
from emsworker.core.extension import parts
from emsworker.core.large import LARGE_BYTES
from emsworker.core.servers import MAIN, check_apart, parse_servers
from emsworker.core.tags import named
from emsworker.core.url import DatabaseUrl, impatient, redact, redact_url
from emsworker.store.cluster import clients
from emsworker.store.engine import probe, schema
from emsworker.store.engine.database import Database
from emsworker.store.engine.replica import replica_lag, topology
from emsworker.store.engine.schema import ServerFacts
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from emsworker.store.engine.tables import find_faults
from emsworker.store.groups import handlers
from emsworker.store.stream import intake, orphans, retention
from emsworker.store.stream.messages import fitting_body, packet_of
from emsworker.store.topics import list_pointers

T = TypeVar("T")

_CLOCK_LIMIT_S = 1.0
_ASK_S = 3.0  # for another server to answer
_MOST_NAMED = 5  # topics, each by a line of its own


class Severity(StrEnum):
    """The severity of a finding: ``ok``; ``warning``: it works, with a risk; ``error``: a promise does not hold."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: of the setting or thing.
        value: what was found, secrets hidden.
        fix: what to do; empty if all is well.
    """

    severity: Severity
    name: str
    value: str
    fix: str = ""


def _ok(name: str, value: str) -> Finding:
    return Finding(Severity.OK, name, value)


def _error(name: str, value: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, name, redact(value), redact(fix))


def _warning(name: str, value: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, name, redact(value), redact(fix))


def check(
    url: str | None, redis_url: str | None, environ: Mapping[str, str] | None = None, role: str | None = None
) -> list[Finding]:
    """Run all checks; a fault in one thing does not hide another.

    Args:
        url, redis_url: of the stream, where they do not come from the environment.
        environ: the environment, by default the process's own.
        role: whose privileges the user must have: publisher, producer, worker, reader, sink or admin; without it those
            of any one.
    """
    environ = os.environ if environ is None else environ
    findings, settings = _check_settings(environ, {"url": url, "redis_url": redis_url})
    url = settings.url if settings else url or environ.get("EMS_URL")
    redis_url = settings.redis_url if settings else redis_url or environ.get("EMS_REDIS_URL")
    if url and _readable(url):
        findings += _check_database(url, settings or Settings(), role)
    findings += _check_redis(redis_url)
    return findings


def _check_settings(environ: Mapping[str, str], given: dict[str, str | None]) -> tuple[list[Finding], Settings | None]:
    unknown = [_warning(variable, "ignored", hint) for variable, hint in unknown_variables(environ).items()]
    try:
        settings = Settings.load(environ=environ, **{name: value for name, value in given.items() if value is not None})
    except ConfigError as error:
        return unknown + [_error(problem.name, problem.value, problem.fix) for problem in error.problems], None
    return [_ok("settings", "every one is valid"), *unknown], settings


def _readable(url: str) -> bool:
    try:
        DatabaseUrl.parse(url)
    except ValueError:
        return False  # reported among the settings
    return True


def _check_database(url: str, settings: Settings, role: str | None) -> list[Finding]:
    database = Database(url, settings.connect_timeout_s, call_timeout_s=settings.connect_timeout_s)
    try:
        facts = database.call(schema.server_facts)
    except ConfigError as error:
        return [_error(problem.name, problem.value, problem.fix) for problem in error.problems]
    except EmsError as error:
        return [_error("connection", url, redact(str(error)))]
    findings = [_ok("connection", redact(url)), *_check_server(facts)]
    version, found = _check_schema(database)
    findings += found
    findings += _check_topology(database)
    if facts.read_only:
        fix = (
            "privileges are tried by statements that a read-only server refuses; check the server when it takes writes"
        )
        findings.append(_warning("privileges", "not tried", fix))
    else:
        findings += _check_privileges(database, migrated=version > 0, role=role)
    findings.append(_check_clock(database.call(probe.clock_difference_s)))
    if version > 0:
        findings += _patiently(database, _check_engines)
        findings += _patiently(database, lambda session: _check_pointers(session, settings))
        findings += _check_apart(url, database, settings)
        findings += _patiently(database, lambda session: _check_limits(session, facts))
        findings += _patiently(database, _check_idle_timeouts)
        findings += _patiently(database, _check_refused)
        findings += _patiently(database, _check_endless)
        findings += _patiently(database, _check_unheard)
        findings += _patiently(database, _check_tags)
        findings += _patiently(database, _check_orphans)
        findings += _check_extensions(database, settings)
        if not facts.read_only:
            findings += _check_room(database)
    database.thread_session().close()
    return findings


def _check_topology(database: Database) -> list[Finding]:
    """Name the part that the server plays among others, what it costs, and how far a replica is behind."""

    def work(session: Session) -> list[Finding]:
        part = topology(session)
        found = [_warning("topology", part.name, part.cost) if part.cost else _ok("topology", part.name)]
        if part.name == "replica":
            lag = replica_lag(session)
            known = lag.seconds is not None
            found.append(_ok("replica lag", str(lag)) if known else _warning("replica lag", "unknown", lag.reason))
        if expel_s := probe.expel_timeout_s(session):  # 1 s was measured to take as long as 5 s
            fix = "sends stop for some 22 s when the primary dies or freezes; with 0 on every member for some 7 s"
            found.append(_warning("group_replication_member_expel_timeout", str(expel_s), fix))
        return found

    return _patiently(database, work)


def _patiently(database: Database, work: Callable[[Session], list[T]]) -> list[T]:
    """Return what ``work`` finds in the tables; nothing if they may not be read, which the privileges report."""
    try:
        return database.call(work)
    except EmsError:
        return []


def _check_server(facts: ServerFacts) -> Iterator[Finding]:
    if facts.supported:
        yield _ok("server version", facts.version)
    else:
        yield _error("server version", facts.version, schema.unsupported(facts))
    flush = facts.flush_log_at_commit
    if flush == 1:
        yield _ok("innodb_flush_log_at_trx_commit", "1")
    else:
        fix = "a confirmed message may be lost when the machine fails; set it to 1"
        yield _error("innodb_flush_log_at_trx_commit", str(flush), fix)
    yield from _check_binlog(facts)
    if facts.read_only:
        fix = (
            "nothing can be written: if it is a replica, it may be read as EMS_READ_URL, and EMS_URL names the primary "
            "server; if it is the primary, set read_only = OFF"
        )
        yield _error("read_only", "ON", fix)
    else:
        yield _ok("read_only", "OFF")


def _check_binlog(facts: ServerFacts) -> Iterator[Finding]:
    if not facts.log_bin:
        yield _ok("log_bin", "OFF")
        return
    if facts.sync_binlog == 1:
        yield _ok("sync_binlog", "1")
    else:
        fix = "replicas and backups may miss the last commits of a crashed machine; set it to 1"
        yield _warning("sync_binlog", str(facts.sync_binlog), fix)
    kind = facts.binlog_format.upper()
    if kind == "ROW":
        yield _ok("binlog_format", kind)
    elif kind == "MIXED":
        yield _warning("binlog_format", kind, "set it to ROW: claims skip locked rows, which is safe by rows only")
    else:
        fix = "replicas would diverge, because claims skip locked rows; set it to ROW"
        yield _error("binlog_format", kind, fix)


def _check_schema(database: Database) -> tuple[int, list[Finding]]:
    """Return the version of the tables, 0 if they cannot be used, and what is wrong with them."""
    try:
        version = database.call(schema.current_version)
        faults = database.call(lambda session: find_faults(session, version))
    except EmsError as error:
        return 0, [_error("schema version", "unknown", str(error))]
    try:
        database.call(schema.check_version)
        findings = [_ok("schema version", str(version))]
    except EmsError as error:
        findings = [_error("schema version", str(version), str(error))]
    lost = "`ems migrate` puts it back, empty, or says why it cannot; restore a backup if what it held matters"
    findings += [_error("table", f"{table} is missing", lost) for table in faults.missing]
    return version, findings + [
        _error("table", table, schema.foreign_table(table, lacks)) for table, lacks in faults.foreign.items()
    ]


def _check_privileges(database: Database, *, migrated: bool, role: str | None) -> list[Finding]:
    """Check the privileges of a role; without one, those of any one role are enough."""
    known = database.call(lambda session: probe.roles(session, migrated=migrated))
    if role is not None and role not in known:
        fix = f"the stream has no tables for this role; there are {', '.join(known)}, and more by `ems migrate --with`"
        return [_error("role", role, fix)]
    roles = known if role is None else (role,)
    allowed: set[Sql] = set()

    def find_missing(session: Session, role: str) -> list[str]:
        return probe.missing_privileges(session, migrated=migrated, role=role, allowed=allowed)

    lacks = {one: database.call(partial(find_missing, role=one)) for one in roles}
    errors = {one: set(missing) - set(probe.MIGRATION_PRIVILEGES) for one, missing in lacks.items()}
    nearest = min(roles, key=lambda one: len(errors[one]))
    enough = [one for one in roles if not errors[one]]
    findings = []
    if enough:
        others = [one for one in roles if one not in enough]
        beyond = f"; not what these need: {', '.join(others)} (--role says what is missing)" if others else ""
        findings.append(_ok("privileges", f"all that these need: {', '.join(enough)}{beyond}"))
    elif role is None:
        findings.append(_warning("role", nearest, "the role that lacks least; --role asks for another one"))
    return [*findings, *_lacking(lacks[nearest])]


def _lacking(missing: list[str]) -> list[Finding]:
    findings = []
    for privilege in missing:
        if privilege in probe.MIGRATION_PRIVILEGES:
            fix = "only `ems migrate` needs it; grant it to the user that runs it"
            findings.append(_warning("privilege", f"{privilege} is missing", fix))
        else:
            findings.append(_error("privilege", f"{privilege} is missing", "grant it to this user on the database"))
    return findings


def _check_clock(ahead_s: float) -> Finding:
    value = f"the server's is {seconds_text(ahead_s)} from ours"
    if abs(ahead_s) > _CLOCK_LIMIT_S:
        fix = "times are read from the server's clock, expiry and ids from this machine's; synchronize both (NTP)"
        return _warning("clock", value, fix)
    return _ok("clock", value)


def _check_engines(session: Session) -> list[Finding]:
    found = probe.foreign_engines(session)
    if not found:
        return [_ok("engine", "InnoDB")]
    fix = "without transactions and row locks nothing of what EMS promises holds: ALTER TABLE {} ENGINE = InnoDB"
    return [_error("engine", f"{name} is in {engine}", fix.format(name)) for name, engine in found.items()]


def _check_pointers(session: Session, settings: Settings) -> list[Finding]:
    """Find topics that are kept on a server that the settings do not name."""
    named = {MAIN, *(one.name for one in parse_servers(settings.servers))}
    return [
        _error(
            "EMS_SERVERS",
            f"does not name {server!r}",
            f"{counted(count, 'topic')} of this server point there, such as {topic!r}; name it, or move them again",
        )
        for server, topic, count in list_pointers(session)
        if server not in named
    ]


def _check_apart(url: str, database: Database, settings: Settings) -> list[Finding]:
    """Find names of servers that lead to one stream; those that do not answer are checked by themselves (--server)."""
    others = {one.name: one.url for one in parse_servers(settings.servers) if one.url != url}
    databases = {MAIN: database} | {
        name: Database(impatient(other, _ASK_S), _ASK_S, _ASK_S) for name, other in others.items()
    }
    found = Servers(databases).ask(lambda _, one: one.call(schema.stream_id)) if others else {}
    try:
        check_apart({name: stream for name, stream in found.items() if isinstance(stream, str)})
    except ConfigError as error:
        return [_error(problem.name, problem.value, problem.fix) for problem in error.problems]
    return []


def _check_limits(session: Session, facts: ServerFacts) -> list[Finding]:
    value = str(facts.max_allowed_packet)
    largest = probe.largest_limit(session)
    fitting = fitting_body(facts.max_allowed_packet)
    if largest and (most := min(largest[1], LARGE_BYTES)) > fitting:  # larger bodies go in chunks
        fix = (
            f"topic {largest[0]!r} takes messages of {most} bytes, which need {packet_of(most)}; raise it, "
            f"or lower the limit with `ems topics change {largest[0]} --max-message-bytes {fitting}`"
        )
        return [_error("max_allowed_packet", value, fix)]
    return [_ok("max_allowed_packet", value)]


def _check_idle_timeouts(session: Session) -> list[Finding]:
    """Find settings that close a connection that is silent while a message runs for as long as it may.

    A proxy's timeouts cannot be seen from here, unless it keeps our sessions from setting their own.
    """
    longest = probe.longest_timeout(session)
    findings = []
    for one in probe.idle_timeouts(session):
        if longest is None or longest[2] <= min(one.seconds, one.own_s):
            if one.name == "wait_timeout":
                findings.append(_ok(one.name, format_duration(one.seconds)))
            continue
        topic, group, timeout_s = longest
        whose = "connections of your own" if timeout_s <= one.own_s else "those of EMS too"
        fix = (
            f"a message of {topic}/{group} may run for {format_duration(timeout_s)}, and connections that are silent "
            f"meanwhile are closed, {whose}; raise it, and the idle timeout of a proxy between"
        )
        findings.append(_warning(one.name, format_duration(one.seconds), fix))
    return findings


def _check_refused(session: Session) -> list[Finding]:
    count = intake.count_refused(session)
    if not count:
        return [_ok("ems_publish", "no row is refused")]
    value = f"{counted(count, 'row')} refused" if count < 1000 else "1000 rows or more are refused"
    fix = (
        "messages written by plain SQL are not sent (`ems refused list`), and deleted after `refused_keep_s`, "
        "or earlier if there are many"
    )
    return [_warning("ems_publish", value, fix)]


def _check_endless(session: Session) -> list[Finding]:
    """Find topics that nothing is deleted from."""
    endless = retention.list_endless(session)
    if not endless:
        return [_ok("retention", "every topic has one")]
    named = [(f"topic {name!r}", name, count) for name, count in endless[:_MOST_NAMED]]
    if rest := endless[_MOST_NAMED:]:
        named.append((f"and {counted(len(rest), 'more topic')}", "NAME", sum(count for _, count in rest)))
    return [
        _warning(
            "retention",
            f"{what}: everything is kept for ever, {counted(count, 'offset')} so far",
            f"`ems topics change {name} --keep-done 1h` deletes what every group has run, --retention 7d what is also "
            "older; --retention 36500d says that it is meant",
        )
        for what, name, count in named
    ]


def _check_unheard(session: Session) -> list[Finding]:
    """Find calls for groups that do not exist, which hold up retention."""
    return [
        _warning(
            "retention",
            f"topic {topic!r} has calls for group {group!r}, which does not exist",
            f"they and all that follows are kept: start its worker, or `ems groups create {topic} {group} --from end` "
            "lets them go",
        )
        for topic, group in retention.list_unheard(session)
    ]


def _check_tags(session: Session) -> list[Finding]:
    """Find groups with work whose tags no live worker has."""
    waiting = handlers.list_required_with_work(session)
    present = clients.list_tags(session) if waiting else []
    return [
        _warning(
            "tags",
            f"no worker with {named(tags)}, which group {group!r} of topic {topic!r} requires",
            f"its messages are kept and wait: `ems worker --tags {','.join(tags)}` on a machine that has them",
        )
        for topic, group, tags in waiting
        if not any(set(tags) <= has for has in present)
    ]


def _check_orphans(session: Session) -> list[Finding]:
    """Find rows that no topic has; those of a topic without a row of its own are left alone by the beat."""
    found = orphans.find(session)
    foreign = "nobody reads them; the beat sets them aside (`ems refused list`): look for who inserts rows beside EMS"
    gone = "its rows are kept, and nobody reads them; put its row back from a backup, or delete them"
    return [_warning(str(one), "there is no such topic or partition", foreign) for one in found.orphans] + [
        _error("ems_topic", f"the row of topic_id {number} is gone, and it was not deleted by EMS", gone)
        for number in sorted(found.lost)
    ]


def _check_extensions(database: Database, settings: Settings) -> Iterator[Finding]:
    """Run the checks of the extensions whose tables the stream has; one that fails must not hide the others."""
    present = {one.name for one in _patiently(database, schema.present_extensions)}
    for one, checks in parts("checks"):
        for look in checks if one.name in present else ():
            try:
                yield from database.call(lambda session, look=look: [*look(session, settings)])  # type: ignore[misc]
            except AccessDenied:
                continue  # which the privileges report
            except Exception as error:  # of somebody else's code
                yield _error(f"extension {one.name}", "not checked", repr_of(error))


def _check_room(database: Database) -> list[Finding]:
    """Check that a message can be written; nothing is said if this user may not write any."""
    try:
        probe.check_room(database.thread_session())
    except DiskFull as error:
        return [_error("disk", "full", f"messages cannot be sent: {error}")]
    except (StoreError, EmsError):
        return []
    return [_ok("disk", "there is room for a message of 64 KB")]


def _check_redis(url: str | None) -> list[Finding]:
    if not url:
        return [_ok("redis", "not configured; workers find new messages by polling")]
    import redis

    from emsworker.publish.redis_connection import connect

    try:
        with connect(url) as client:
            client.ping()
            return [_ok("redis", redact(url)), *_check_persistence(client)]
    except (redis.RedisError, ValueError) as error:
        fix = f"it cannot be reached ({redact(str(error))}); EMS works without it, but notices new messages later"
        return [_error("redis", redact_url(url), fix)]


def _check_persistence(client: Any) -> list[Finding]:
    import redis

    try:
        append = client.config_get("appendonly").get("appendonly", "")
        save = client.config_get("save").get("save", "")
    except redis.ResponseError as error:
        return [_warning("redis persistence", "not known", f"CONFIG GET is refused: {error}")]
    if append == "yes":
        return [_ok("redis persistence", "appendonly yes")]
    fix = "after a restart of Redis, offsets are seeded from MySQL, which takes a moment; set appendonly yes"
    return [_warning("redis persistence", f"appendonly {append}, save {save!r}", fix)]
