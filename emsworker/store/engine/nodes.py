"""The servers of a URL: what each one is, which one is written to, and when a silent one is given up.

One server is the usual case. If there are several, they are a primary and its replicas, the members of a replication
group, or the nodes of a Galera cluster, and only one of them may be written to: the one that is not read-only, the
group's primary, or the first node of the URL that is fit. All processes make the same choice.

A single address may be that of a router, which leads each connection to any member of a replication group. Only the
primary is written to there as well: another member costs one more connection.
"""

from __future__ import annotations

import contextlib
import math
import random
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from pymysql.err import MySQLError, OperationalError

from emsworker.core.errors import AccessDenied, EmsError, TlsError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.url import DatabaseUrl
from emsworker.store.engine.connection import Connection
from emsworker.store.engine.errors import code_of
from emsworker.store.engine.sql import Sql, Statements, join
from emsworker.store.engine.tls import check_encrypted, mode_of, tls_context, tls_error

_SQL = Statements(__name__)
_READ_TIMEOUT_S = 60.0
_SEVERAL_CONNECT_S = 2.0
_SILENT_S = 2.0  # after which other servers are asked; a slow statement may well take longer
_PROBE_S = 1  # for an answer of a server that has been silent, and between two such looks
_LOOK_S = 1.0
_GREETS_S = 1.0  # without a greeting, after which a single address is tried once more, as it may be a router's
_MEMBER_GREETS_S = 0.25  # the same where it leads to a member of a replication group
_MOST_MEMBERS = 9  # of a replication group
_RETURN_S = 5.0  # between two looks if an earlier node of the URL is fit again
_NO_PRIVILEGE = 1142
_OTHERS = "gcomm://"  # before the addresses of a Galera cluster's nodes; alone it begins a cluster
# Dates stay text until they are needed: parsing one costs as much as the rest of a row.
_LAZY_DATES = {
    kind: reader for kind, reader in conversions.items() if kind not in (FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP)
}


@dataclass(frozen=True)
class Standing:
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


class Nodes:
    """Opens connections to the servers of a URL; shared by the sessions of a :class:`Database`.

    Args:
        url: names one server or several.
        connect_timeout_s: seconds that one attempt to connect may take.
        only_reads: any member of a replication group will do.
    """

    def __init__(self, url: DatabaseUrl, connect_timeout_s: float = 10.0, *, only_reads: bool = False) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._only_reads = only_reads
        self._members = 0  # of the replication group that a single address leads to, as far as seen
        self._first = 0  # tried first: the one that could be written to the last time
        self._mutex = forks.Lock()
        self._left: dict[int | str, tuple[float, bool]] = {}  # what came of the last look at a silent server
        self._next_return = 0.0
        self._lookout: Connection | None = None  # to the member that is asked about a silent one
        self._looked_at = 0.0

    def open(self, answer_s: float | None = None) -> Connection:
        """Connect to the server that is to be written to; one that is alone may be read-only.

        Args:
            answer_s: seconds after which a server that does not answer counts as lost, if the URL says no less.

        Raises:
            MySQLError, OSError, EmsError: it cannot be reached, or none of several can be written to.
        """
        return self._open_fit(answer_s) if self._url.others else self._open_single(answer_s)

    def _open_single(self, answer_s: float | None) -> Connection:
        """Connect to the only address, again and again while it leads to different members that are not the primary."""
        reasons: dict[str, str] = {}
        last: tuple[Connection, Standing] | None = None
        until, tries = ticks() + self._connect_timeout_s, 0
        while tries < _MOST_MEMBERS and ticks() < until:  # they may not come in turn: other clients connect as well
            tries += 1
            if last is not None:
                last[0].close()
                last = None
            try:
                connection = self._connect(0, answer_s=answer_s, at_most_s=max(1, round(until - ticks())))
                standing = standing_of(connection)
            except (MySQLError, OSError) as error:
                if not self._members:
                    raise
                reasons[_address(self._url.servers[0])] = f": {error}"
                continue
            self._members = max(self._members, standing.members)
            if self._is_enough(standing):
                if standing.kind == "group" and not self._only_reads:
                    self._watch_member(connection, standing.member, answer_s)
                return connection
            last = connection, standing
            reasons[connection.server] = f" {standing.unfit}"
            if standing.elects:
                break  # until there is one: a router holds each connection that it leads to a frozen member meanwhile
        if last is not None:
            connection, standing = last
            if len(reasons) == 1 and not standing.outside and not standing.elects:
                return connection  # that answered every time: the URL names this member alone, which can be read
            connection.close()
        where = "" if len(reasons) == 1 else f"no server behind {_address(self._url.servers[0])} can be written to: "
        raise OperationalError(2003, where + "; ".join(server + reason for server, reason in reasons.items()))

    def _is_enough(self, standing: Standing) -> bool:
        if standing.kind != "group" or self._only_reads:
            return not standing.outside
        return not standing.unfit

    def _watch_member(self, connection: Connection, member: str, answer_s: float | None) -> None:
        connection.may_change = True
        answer_s = self._answer_s(answer_s)
        connection.watch(answer_s, min(_SILENT_S, answer_s), partial(self._has_successor, member))

    def _open_fit(self, answer_s: float | None) -> Connection:
        reasons = []
        count = len(self._url.servers)
        for number in [(self._first + step) % count for step in range(count)]:
            host, port = self._url.servers[number]
            try:
                connection = self._connect(number, answer_s=answer_s)
                standing = standing_of(connection)
                if not standing.unfit:
                    self._note_choice(number, standing)
                    return connection
                connection.close()
                reasons.append(f"{host}:{port} {standing.unfit}")
            except (MySQLError, OSError, TlsError) as error:
                reasons.append(f"{host}:{port}: {error}")
        self._first = 0
        raise OperationalError(2003, f"no server can be written to: {'; '.join(reasons)}")

    def _note_choice(self, number: int, standing: Standing) -> None:
        self._first = number
        if number and standing.many:
            self._next_return = ticks() + _RETURN_S * random.uniform(1, 1.5)

    def still_serves(self, connection: Connection) -> bool:
        """Return whether the connection's server is still the one to use; asked now and then, between transactions.

        Raises:
            MySQLError, OSError: it cannot be reached.
        """
        if not connection.may_change or ticks() < connection.next_look:
            return True
        connection.next_look = ticks() + _LOOK_S
        self._dismiss_lookout()
        standing = _standing_now(connection)
        if standing.unfit:
            return False
        return not (standing.many and self._is_behind(connection.number, standing.view))

    def _is_behind(self, number: int, view: str) -> bool:
        """Return whether an earlier server of the URL is fit, at which all processes should meet again.

        Args:
            view: of the server in use. One that was frozen believes for some seconds that it is fit, in an older view.
        """
        if self._first < number:
            return True  # another thread has found it
        if number == 0 or ticks() < self._next_return or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._next_return = ticks() + _RETURN_S * random.uniform(1, 1.5)
            found = next((one for one in range(number) if self._is_fit(one, view)), number)
            self._first = min(self._first, found)
            return found < number
        finally:
            self._mutex.release()

    def should_leave(self, number: int) -> bool:
        """Return whether a server that has been silent for some seconds is to be given up.

        A statement that takes long is no reason. A second connection tells: the server answers that it may not be
        written to, or it does not answer, and another can be written to.
        """
        with self._mutex:
            seen_at, leave = self._left.get(number, (0.0, False))
            if ticks() - seen_at > _PROBE_S / 2:
                own = self._ask(number)
                heir = None if own is not None and not own.unfit else self._heir_of(number)
                leave = heir is not None or (own is not None and bool(own.unfit))
                if heir is not None and self._first == number:
                    self._first = heir
                self._left[number] = ticks(), leave
            return leave

    def _has_successor(self, member: str) -> bool:
        """Return whether a silent member behind the only address is to be given up; see :meth:`should_leave`.

        Args:
            member: its id: further connections may lead to others.
        """
        with self._mutex:
            seen_at, leave = self._left.get(member, (0.0, False))
            if ticks() - seen_at > _PROBE_S / 2:
                leave = self._is_replaced(member)
                self._left[member] = ticks(), leave
            return leave

    def _is_replaced(self, member: str) -> bool:
        found = self._look_out()
        if found is None:
            return False
        return bool(found.unfit) if found.member == member else bool(found.primaries - {member})

    def _look_out(self) -> Standing | None:
        """Ask a member that answers, the same as the last time; ``None`` if none does.

        A router holds each connection that it has led to a frozen member, for as long as that is frozen, and takes some
        hundred in all: connecting anew for each look, processes would soon have used them up.
        """
        self._looked_at = ticks()
        if self._lookout is not None:
            try:
                return _standing_now(self._lookout)
            except (MySQLError, OSError, EmsError):
                _close(self._lookout)
                self._lookout = None
        try:
            self._lookout = self._connect(0, _PROBE_S)
            return standing_of(self._lookout)
        except (MySQLError, OSError, EmsError):
            return None

    def _dismiss_lookout(self) -> None:
        """Close the connection for looks if the last one is some time ago."""
        if self._lookout is None or ticks() - self._looked_at < _RETURN_S or not self._mutex.acquire(blocking=False):
            return
        try:
            _close(self._lookout)
            self._lookout = None
        finally:
            self._mutex.release()

    def _heir_of(self, number: int) -> int | None:
        return next((one for one in range(len(self._url.servers)) if one != number and self._is_fit(one)), None)

    def _is_fit(self, number: int, view: str | None = None) -> bool:
        standing = self._ask(number)
        return standing is not None and not standing.unfit and view in (None, standing.view)

    def _ask(self, number: int) -> Standing | None:
        """Ask a server over a connection of its own; ``None`` if it does not answer."""
        try:
            connection = self._connect(number, _PROBE_S)
        except (MySQLError, OSError, EmsError):
            return None
        try:
            return standing_of(connection)
        except (MySQLError, OSError, EmsError):
            return None
        finally:
            _close(connection)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _connect_timeout(self) -> int:
        """Return whole seconds, at most a few if there are other servers: one that hangs must not delay them."""
        default = min(self._connect_timeout_s, _SEVERAL_CONNECT_S) if self._url.others else self._connect_timeout_s
        return max(1, round(float(self._url.options.get("connect_timeout_s", default))))

    @property
    def _greets_s(self) -> float | None:
        """Seconds without a greeting after which another connection is tried; ``None`` if it would lead to the same."""
        if self._url.others or "unix_socket" in self._url.options:
            return None
        return _MEMBER_GREETS_S if self._members else _GREETS_S

    def _answer_s(self, answer_s: float | None) -> float:
        return min(float(self._url.options.get("read_timeout_s", _READ_TIMEOUT_S)), answer_s or math.inf)

    def _connect(
        self,
        number: int,
        probe_s: float | None = None,
        answer_s: float | None = None,
        at_most_s: float = math.inf,
    ) -> Connection:
        """Connect to one server, and set all that our statements depend on.

        Args:
            probe_s: seconds for connecting and for each answer, of a connection that only looks.
            answer_s: see :meth:`open`.
            at_most_s: seconds for connecting, if the settings do not allow less.
        """
        options = self._url.options
        host, port = self._url.servers[number]
        context = tls_context(options)
        answer_s = self._answer_s(answer_s)
        connect_s = probe_s or min(self._connect_timeout(), at_most_s)
        connection = _open_socket(
            context,
            self._greets_s,
            host=host,
            port=port,
            user=self._url.user,
            password=self._url.password.encode(),  # PyMySQL would encode it as Latin-1
            database=self._url.database,
            unix_socket=options.get("unix_socket"),
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
            connect_timeout=connect_s,
            # A frozen server's system accepts connections, but nobody greets.
            read_timeout=connect_s,
            write_timeout=answer_s,
            ssl=context,
            ssl_disabled=mode_of(options) == "disabled",
            conv=_LAZY_DATES,
        )
        connection.number, connection.next_look = number, ticks() + _LOOK_S
        connection.query(join(";", (*connection.settings, _SQL.get_identity, _SQL.show_standing)))
        for _ in connection.settings:
            connection.next_result()
        limit, name, own_port = connection._result.rows[0]
        connection.max_allowed_packet = int(limit)
        connection.server = f"{host}:{port}" if own_port == port else f"{host}:{port} (there {name}:{own_port})"
        connection.next_result()
        connection.variables = dict(connection._result.rows)
        if connection.variables.get("wsrep_on") == "ON":
            connection.one_by_one = True
            connection.settings = (*connection.settings, _SQL.set_galera)
            connection.query(_SQL.set_galera)
        if probe_s is None:
            if self._url.others:
                connection.may_change = True
                connection.watch(answer_s, min(_SILENT_S, answer_s), partial(self.should_leave, number))
            else:
                connection.wait_for(answer_s)
        return connection


def _open_socket(context: ssl.SSLContext | None, greets_s: float | None, host: str, **arguments: Any) -> Connection:
    try:
        connection = Connection(host=host, defer_connect=True, **arguments)
        if greets_s is None:
            connection.connect()
        else:
            connection.connect_to_first(arguments["connect_timeout"], greets_s)
        if context is not None:
            check_encrypted(connection)
    except (MySQLError, OSError) as error:
        if (meaning := tls_error(error, host)) is not None:
            raise meaning from None
        raise
    return connection


def _address(server: tuple[str, int]) -> str:
    return f"{server[0]}:{server[1]}"


def _rows(connection: Connection, statement: Sql) -> Sequence[tuple[Any, ...]]:
    connection.query(statement)
    return connection._result.rows or ()


def _close(connection: Connection) -> None:
    with contextlib.suppress(Exception):
        connection.close()


def _standing_now(connection: Connection) -> Standing:
    connection.variables = dict(_rows(connection, _SQL.show_standing))
    return standing_of(connection)


def standing_of(connection: Connection) -> Standing:
    """Ask the server of a new connection what it is, and note on the connection if there are other writers.

    Raises:
        AccessDenied: the account may not read it.
    """
    said = dict(connection.variables)
    group = said.pop("group_replication_group_name", "")
    single = said.pop("group_replication_single_primary_mode", "ON") in ("ON", "1")
    cluster = said.pop("wsrep_cluster_address", "")
    if said.pop("wsrep_on", "OFF") == "ON":
        standing = _standing_in_cluster(connection)
    elif cluster.startswith(_OTHERS) and cluster != _OTHERS:
        reason = f"is configured for a Galera cluster (wsrep_cluster_address = {cluster}) and takes no part in it"
        standing = Standing("galera", True, f"{reason}: wsrep_on is OFF", reason)
    elif group:
        standing = _standing_in_group(connection, group, single)
    else:
        standing = Standing()
    connection.among_writers = standing.many
    if not standing.unfit and any(value not in ("OFF", "0") for value in said.values()):
        return replace(standing, unfit="is read-only")
    return standing


def membership_grant(user: str) -> str:
    """Return the statement that lets a user read which member of a replication group is the primary.

    Args:
        user: ``'user'@'host'``, quoted.
    """
    return _SQL.grant_membership.format(user=user)


def _standing_in_group(connection: Connection, group: str, single: bool) -> Standing:
    """Return what the group thinks: a former member that was started alone is writable, and nobody would get it."""
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
        return Standing("group", many, reason, reason, members=count, member=str(member))
    if 2 * int(unreachable) >= count:
        unfit = f"cannot reach {unreachable} of the {members} members of its replication group"
        return Standing("group", many, unfit, members=count, member=str(member))
    unfit = ""
    if state != "ONLINE" or role != "PRIMARY":
        unfit = f"is {state} {role} in its replication group, not its primary"
    known = frozenset(filter(None, str(primaries).split(",")))
    return Standing("group", many, unfit, members=count, member=str(member), primaries=known, elects=not known)


def _standing_in_cluster(connection: Connection) -> Standing:
    said = {str(name): str(value) for name, value in _rows(connection, _SQL.show_node)}
    status, state = said.get("wsrep_cluster_status", "?"), said.get("wsrep_local_state_comment", "?")
    if status != "Primary" or said.get("wsrep_ready") != "ON":
        reason = f"is not in the primary component of its Galera cluster ({status}, {state})"
        return Standing("galera", True, reason, reason)
    unfit = "" if state == "Synced" else f"is {state} in its Galera cluster, not Synced"
    return Standing("galera", True, unfit, view=said.get("wsrep_cluster_conf_id", ""))
