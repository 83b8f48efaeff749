"""Checks that a worker or a beat can run here, before any part of it starts. Read-only.

A worker that is refused must leave no trace. Otherwise its beat would lead and fire the schedules of other apps, and
its children would write topics, groups and schedules before the first of them met the problem. So the process that
describes the app checks everything that a child will ask of the stream, once, before children start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from emsworker.app import Ems
from emsworker.core.config import Settings
from emsworker.core.declaration import check_declared
from emsworker.core.errors import (
    AccessDenied,
    EmsError,
    StoreUnavailable,
    UnknownGroup,
    UnknownTopic,
    unknown_group,
    unknown_topic,
)
from emsworker.core.ids import check_name
from emsworker.core.model import TopicKind
from emsworker.core.priority import level_for
from emsworker.core.process.address import address_place
from emsworker.core.process.role import claim_role
from emsworker.core.servers import check_apart
from emsworker.core.url import redact_url
from emsworker.store import (
    Database,
    Session,
    check_server,
    check_version,
    has_privileges,
    missing_privileges,
    server_facts,
    stream_id,
    topics,
    with_tables,
)
from emsworker.store.cluster import schedules
from emsworker.tasks.fairness import check_no_order, fair_of
from emsworker.tasks.limits import limit_of
from emsworker.tasks.route import Route

_CALL_TIMEOUT_S = 3.0
_NAMED = 5


@dataclass(frozen=True)
class Needs:
    """Privileges that a program needs.

    Attributes:
        program: its name in errors.
        role: its role.
        allow: additional permissions of the role.
        remedy: what helps besides a grant.
    """

    program: str
    role: str
    allow: tuple[str, ...] = ()
    remedy: str = ""


WORKER = Needs("a worker", "worker")
WORKER_WITH_BEAT = Needs(
    "a worker with a beat", "worker", ("beat",), ", or start it with --no-beat, and `ems beat` as a user of its own"
)
BEAT = Needs("a beat", "beat")


def check_stream(url: str, settings: Settings, needs: Needs) -> Database:
    """Connect, and check the server, the schema and the privileges that a program needs.

    Raises:
        StoreUnavailable, ServerUnsupported, SchemaMissing: the stream cannot be used now.
        AccessDenied: the user, the password or a privilege is refused; in one line, however many are missing.
    """
    claim_role(needs.role)
    database = Database(url, settings.connect_timeout_s, _CALL_TIMEOUT_S)
    try:
        database.call(check_server)
        database.call(check_version)
        if not database.call(lambda session: has_privileges(session, needs.role, needs.allow)):
            raise AccessDenied(database.call(lambda session: _lacking(session, needs)))
    except StoreUnavailable as error:
        raise StoreUnavailable(f"{error}; the address is {redact_url(url)} ({address_place(url)})") from error
    return database


def check_streams(urls: Mapping[str, str], settings: Settings, needs: Needs) -> dict[str, Database]:
    """Check each server as :func:`check_stream` does, and return the streams by name, without servers that are away.

    Raises:
        StoreUnavailable: all are away.
        ServerUnsupported, SchemaMissing, AccessDenied: one of them cannot be used.
        ConfigError: two of them are one.
    """
    found: dict[str, Database] = {}
    away: list[StoreUnavailable] = []
    for name, url in urls.items():
        try:
            found[name] = check_stream(url, settings, needs)
        except StoreUnavailable as error:
            away.append(error)
    if not found:
        raise away[0]
    check_apart({name: database.call(stream_id) for name, database in found.items()})
    return found


def _lacking(session: Session, needs: Needs) -> str:
    missing = missing_privileges(session, migrated=True, role=needs.role, allow=needs.allow)
    missing.sort(key=lambda privilege: " on " in privilege)  # privileges missing on all tables first
    named = ", ".join(missing[:_NAMED]) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    user = server_facts(session).user
    options = "".join(f" --allow {one}" for one in needs.allow)
    options += "".join(f" --with {one.name}" for one in with_tables(session))
    return (
        f"the database user {user} lacks what {needs.program} needs: {named}; "
        f"run the statements that `ems grants {needs.role} --user USER@HOST{options}` prints{needs.remedy}"
    )


def chosen_routes(app: Ems, path: str, topics: Sequence[str], groups: Sequence[str]) -> list[Route]:
    """The routes of an app that ``-Q`` and ``--groups`` select, in the app's order.

    Args:
        path: what ``-A`` was given.
        topics, groups: what the options name; empty for all.

    Raises:
        UnknownTopic, UnknownGroup: an option names what the app has no handler for.
    """
    routes = [
        r
        for r in app.registry.routes.values()
        if (not topics or r.topic in topics) and (not groups or r.group in groups)
    ]
    heard = [route.topic for route in app.registry.broadcasts.values()]
    _check_names("-Q", topics, [*(route.topic for route in app.registry.routes.values()), *heard], path, UnknownTopic)
    _check_names("--groups", groups, [route.group for route in app.registry.routes.values()], path, UnknownGroup)
    if not routes and not any(not topics or topic in topics for topic in heard):
        raise UnknownTopic(
            f"{path} has no task and no subscription for these topics and groups, so there is nothing to run"
        )
    return routes


def _check_names(
    option: str, wanted: Sequence[str], known: Sequence[str], path: str, error: type[UnknownTopic | UnknownGroup]
) -> None:
    missing = sorted(set(wanted) - set(known))
    if missing:
        has = ", ".join(sorted(set(known))) or "none"
        raise error(f"{option} names {', '.join(missing)}, for which {path} has no handler; it has some for: {has}")


def check_app(
    app: Ems, routes: Sequence[Route], heard: Sequence[str], database: Database, called: Collection[str], needs: Needs
) -> None:
    """Check an app against the stream: its topics, groups, filters, orders, limits and schedules.

    Args:
        routes: what the worker will consume.
        heard: the topics whose broadcasts it will listen to.
        called: the topics of the schedules that it will declare.
        needs: what the worker needs if it creates nothing.

    Raises:
        EmsError: the first thing that a child would refuse.
    """
    absent = database.call(lambda session: list(_find_absent(session, app, routes, heard, called)))
    if not absent:
        return
    if not app.settings.auto_create:
        raise absent[0]
    creating = replace(needs, allow=(*needs.allow, "auto-create"), remedy="")
    if not database.call(lambda session: has_privileges(session, creating.role, creating.allow)):
        first, _, creation = str(absent[0]).partition(" and auto_create is off; ")
        raise AccessDenied(f"{first}, and {database.call(lambda session: _lacking(session, creating))}, or {creation}")


def server_product(database: Database) -> str:
    """Return the name and the version of a server."""
    return database.call(server_facts).product


def group_timeouts(session: Session) -> dict[tuple[str, str], float]:
    """Return the timeouts of all groups, by topic and group."""
    names = {topic.id: topic.name for topic in topics.list_topics(session)}
    groups = topics.list_groups(session)
    return {(names[one.topic_id], one.name): one.timeout_s for one in groups if one.topic_id in names}


def _find_absent(
    session: Session, app: Ems, routes: Sequence[Route], heard: Sequence[str], called: Collection[str]
) -> Iterator[EmsError]:
    """Yield an error for each topic or group that a child would have to create."""
    for route in routes:
        limit_of(route)
        yield from _check_route(session, route)
    for name in heard:
        yield from _check_topic(session, name, TopicKind.BROADCAST)
    declared = [one for one in app.registry.schedules.values() if one.task.topic in called]
    schedules.check_names(session, [one.name for one in declared])
    for name, priority in {(one.task.topic, one.task.options.priority) for one in declared}:
        topic = topics.get_topic(session, check_name("topic", name))
        level_for(name, app.settings.priorities if topic is None else topic.priorities, priority)
        if topic is None:
            yield unknown_topic(name)


def _check_route(session: Session, route: Route) -> Iterator[EmsError]:
    yield from _check_topic(session, route.topic, TopicKind.CLUSTER)
    topic = topics.get_topic(session, route.topic)
    group = None if topic is None else topics.get_group(session, topic, check_name("group", route.group))
    if topic is not None and group is not None:
        check_declared(topic, group, route.filter, route.order)
    elif topic is not None:
        yield unknown_group(route.topic, route.group)
    order = route.order if group is None else group.order
    route.check_order(order)
    check_no_order(route, fair_of(route), order)


def _check_topic(session: Session, name: str, kind: TopicKind) -> Iterator[EmsError]:
    topic = topics.get_topic(session, check_name("topic", name))
    if topic is None:
        yield unknown_topic(name)
    else:
        topic.check_kind(kind)
