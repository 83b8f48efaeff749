"""The standing of a server, in its own view and in that of its group or cluster: whether it may be written to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pymysql.err import MySQLError

from emsworker.core.errors import AccessDenied
from emsworker.store.engine.connection import Connection
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.sql import Sql, Statements

_SQL = Statements(__name__)
SHOW_STANDING = _SQL.show_standing
_NO_PRIVILEGE = 1142
_READ_ONLY = ("read_only", "super_read_only", "innodb_read_only", "offline_mode")
_OTHERS = "gcomm://"  # before the addresses of a Galera cluster's nodes; alone it begins a cluster


@dataclass(frozen=True)
class ServerRole:
    """Kind of a server, and the reasons why it may not be used.

    Attributes:
        kind: ``server``, ``group`` (a member of a replication group), or ``galera``.
        many: several servers of the URL may be writable at once, so that the first of them is chosen.
        unfit: why it must not be written to; empty if it may be.
        outside: why what it holds is not the stream: it has left its group or cluster; empty otherwise.
        members: how many its replication group has, in its own view.
        view: of its Galera cluster, which has another one after each change of its nodes; empty elsewhere.
        member: its id in its replication group; empty elsewhere.
        primaries: ids of its group's primaries, as it sees them; none if it sees a minority only.
        elects: its group, or a majority of it, has no primary just now.
    """

    kind: str = "server"
    many: bool = False
    unfit: str = ""
    outside: str = ""
    members: int = 0
    view: str = ""
    member: str = ""
    primaries: frozenset[str] = frozenset()
    elects: bool = False


def standing_now(connection: Connection) -> ServerRole:
    """Ask the server of a connection once more what it is.

    Raises:
        MySQLError, OSError: it cannot be reached.
        AccessDenied: the account may not read it.
    """
    connection.variables = dict(_rows(connection, SHOW_STANDING))
    return standing_of(connection)


def standing_of(connection: Connection) -> ServerRole:
    """Ask the server of a new connection what it is, and note on the connection if there are other writers.

    Raises:
        AccessDenied: the account may not read it.
    """
    said = connection.variables
    group = said.get("group_replication_group_name", "")
    single = said.get("group_replication_single_primary_mode", "ON") in ("ON", "1")
    cluster = said.get("wsrep_cluster_address", "")
    if said.get("wsrep_on", "OFF") == "ON":
        standing = _standing_in_cluster(connection)
    elif cluster.startswith(_OTHERS) and cluster != _OTHERS:
        reason = f"is configured for a Galera cluster (wsrep_cluster_address = {cluster}) and takes no part in it"
        standing = ServerRole("galera", True, f"{reason}: wsrep_on is OFF", reason)
    elif group:
        standing = _standing_in_group(connection, group, single)
    else:
        standing = ServerRole()
    connection.among_writers = standing.many
    if not standing.unfit and any(said.get(name, "OFF") not in ("OFF", "0") for name in _READ_ONLY):
        return replace(standing, unfit="is read-only")
    return standing


def membership_grant(user: str) -> str:
    """Return the statement that lets a user read which member of a replication group is the primary.

    Args:
        user: ``'user'@'host'``, quoted.
    """
    return _SQL.grant_membership % {"user": user}


def _standing_in_group(connection: Connection, group: str, single: bool) -> ServerRole:
    """Ask the group: a former member that was started alone is writable, but its writes never replicate."""
    try:
        member, role_here, unreachable, members, primaries = _rows(connection, _SQL.get_membership)[0]
    except MySQLError as error:
        if code_of(error) != _NO_PRIVILEGE:
            raise
        raise AccessDenied(
            f"{connection.server} belongs to the replication group {group}, and this account may not read if it is its "
            f"primary; run: {membership_grant(connection.account)}"
        ) from error
    state, _, role = str(role_here).partition(" ")
    many, count = not single, int(members)
    if state not in ("ONLINE", "RECOVERING"):
        reason = f"is configured for the replication group {group}, and {state} in it: START GROUP_REPLICATION"
        return ServerRole("group", many, reason, reason, members=count, member=str(member))
    if 2 * int(unreachable) >= count:
        unfit = f"cannot reach {unreachable} of the {members} members of its replication group"
        return ServerRole("group", many, unfit, members=count, member=str(member))
    unfit = ""
    if state != "ONLINE" or role != "PRIMARY":
        unfit = f"is {state} {role} in its replication group, not its primary"
    known = frozenset(filter(None, str(primaries).split(",")))
    return ServerRole("group", many, unfit, members=count, member=str(member), primaries=known, elects=not known)


def _standing_in_cluster(connection: Connection) -> ServerRole:
    said = {str(name): str(value) for name, value in _rows(connection, _SQL.show_node)}
    status, state = said.get("wsrep_cluster_status", "?"), said.get("wsrep_local_state_comment", "?")
    if status != "Primary" or said.get("wsrep_ready") != "ON":
        reason = f"is not in the primary component of its Galera cluster ({status}, {state})"
        return ServerRole("galera", True, reason, reason)
    unfit = "" if state == "Synced" else f"is {state} in its Galera cluster, not Synced"
    return ServerRole("galera", True, unfit, view=said.get("wsrep_cluster_conf_id", ""))


def _rows(connection: Connection, statement: Sql) -> Sequence[tuple[Any, ...]]:
    connection.query(statement)
    return connection._result.rows or ()
