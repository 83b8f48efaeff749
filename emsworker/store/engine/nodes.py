"""The servers of a URL: which one is written to, and when a silent one is given up.

One server is the usual case. If there are several, they are a primary and its replicas, the members of a replication
group, or the nodes of a Galera cluster, and only one of them may be written to: the one that is not read-only, the
group's primary, or the first node of the URL that is fit. All processes make the same choice.

A single address may be that of a router, which leads each connection to any member of a replication group. Only the
primary is written to there as well: another member costs one more connection.
"""

from __future__ import annotations

import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

from pymysql.err import MySQLError, OperationalError

from emsworker.core.errors import EmsError, TlsError
from emsworker.core.process import forks
from emsworker.core.process.clock import ticks
from emsworker.core.url import DatabaseUrl
from emsworker.store.engine.connection import Connection
from emsworker.store.engine.dialer import Dialer
from emsworker.store.engine.standing import ServerRole, standing_now, standing_of

_SILENT_S = 2.0  # after which other servers are asked; a slow statement may well take longer
_PROBE_S = 1  # for an answer of a server that has been silent, and between two such looks
_LOOK_S = 1.0
_GREETS_S = 1.0  # without a greeting, after which a single address is tried once more, as it may be a router's
_MEMBER_GREETS_S = 0.25  # the same where it leads to a member of a replication group
_MOST_MEMBERS = 9  # of a replication group
_RETURN_S = 5.0  # between two looks if an earlier node of the URL is fit again


def nodes_of(url: DatabaseUrl, connect_timeout_s: float = 10.0, *, only_reads: bool = False) -> ServerSelector:
    """Return the servers of a URL.

    Args:
        url: names one server or several.
        connect_timeout_s: seconds that one attempt to connect may take.
        only_reads: any member of a replication group behind a single address will do.
    """
    dialer = Dialer(url, connect_timeout_s)
    return SeveralServers(dialer) if url.others else SingleAddress(dialer, only_reads=only_reads)


class ServerSelector(ABC):
    """Opens connections to the server that is to be written to; shared by the sessions of a :class:`Database`."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._mutex = forks.Lock()
        self._left: dict[int | str, tuple[float, bool]] = {}  # what came of the last look at a silent server

    @abstractmethod
    def open(self, answer_s: float | None = None) -> Connection:
        """Connect to the server that is to be written to; one that is alone may be read-only.

        Args:
            answer_s: seconds after which a server that does not answer counts as lost, if the URL says no less.

        Raises:
            MySQLError, OSError, EmsError: it cannot be reached, or none of several can be written to.
        """

    def still_serves(self, connection: Connection) -> bool:
        """Return whether the connection's server is still the one to use; asked now and then, between transactions.

        Raises:
            MySQLError, OSError: it cannot be reached.
        """
        if not connection.may_change or ticks() < connection.next_look:
            return True
        connection.next_look = ticks() + _LOOK_S
        standing = standing_now(connection)
        return not standing.unfit and not self._is_behind(connection.number, standing)

    @abstractmethod
    def _is_behind(self, number: int, standing: ServerRole) -> bool:
        """Return whether another server is to be used instead of one that is fit."""

    def _watch(
        self, connection: Connection, answer_s: float | None, server: int | str, is_replaced: Callable[[], bool]
    ) -> None:
        """Give the server up if ``is_replaced`` says so when it has been silent for some seconds."""
        connection.may_change, connection.next_look = True, ticks() + _LOOK_S
        lost_s = self._dialer.answer_s(answer_s)
        connection.watch(lost_s, min(_SILENT_S, lost_s), partial(self._should_leave, server, is_replaced))

    def _should_leave(self, server: int | str, is_replaced: Callable[[], bool]) -> bool:
        with self._mutex:
            seen_at, leave = self._left.get(server, (0.0, False))  # perhaps by another thread, just now
            if ticks() - seen_at > _PROBE_S / 2:
                leave = is_replaced()
                self._left[server] = ticks(), leave
            return leave


class SeveralServers(ServerSelector):
    """Those that a URL names: the first one that is fit is used."""

    def __init__(self, dialer: Dialer) -> None:
        super().__init__(dialer)
        self._count = len(dialer.url.servers)
        self._first = 0  # tried first: the one that could be written to the last time
        self._next_return = 0.0

    def open(self, answer_s: float | None = None) -> Connection:
        """Connect to the first that can be written to."""
        reasons = []
        for number in [(self._first + step) % self._count for step in range(self._count)]:
            address = self._dialer.address(number)
            try:
                connection = self._dialer.dial(number, self._dialer.connect_s, answer_s=answer_s)
                self._watch(connection, answer_s, number, partial(self._is_replaced, number))
                standing = standing_of(connection)
                if not standing.unfit:
                    self._note_choice(number, standing)
                    return connection
                connection.close()
                reasons.append(f"{address} {standing.unfit}")
            except (MySQLError, OSError, TlsError) as error:
                reasons.append(f"{address}: {error}")
        self._first = 0
        raise OperationalError(2003, f"no server can be written to: {'; '.join(reasons)}")

    def _note_choice(self, number: int, standing: ServerRole) -> None:
        self._first = number
        if number and standing.many:
            self._next_return = ticks() + _RETURN_S * random.uniform(1, 1.5)

    def _is_behind(self, number: int, standing: ServerRole) -> bool:
        """Return whether an earlier server of the URL is fit, at which all processes should meet again.

        Args:
            number: of the server in use.
            standing: its own. One that was frozen believes for some seconds that it is fit, in an older view.
        """
        if not standing.many:
            return False
        if self._first < number:
            return True  # another thread has found it
        if number == 0 or ticks() < self._next_return or not self._mutex.acquire(blocking=False):
            return False
        try:
            self._next_return = ticks() + _RETURN_S * random.uniform(1, 1.5)
            found = next((one for one in range(number) if self._is_fit(one, standing.view)), number)
            self._first = min(self._first, found)
            return found < number
        finally:
            self._mutex.release()

    def _is_replaced(self, number: int) -> bool:
        """Return whether a server that has been silent for some seconds is to be given up.

        A statement that takes long is no reason. A second connection tells: the server answers that it may not be
        written to, or it does not answer, and another can be written to.
        """
        own = self._ask(number)
        if own is not None:
            return bool(own.unfit)
        heir = self._heir_of(number)
        if heir is not None and self._first == number:
            self._first = heir
        return heir is not None

    def _heir_of(self, number: int) -> int | None:
        return next((one for one in range(self._count) if one != number and self._is_fit(one)), None)

    def _is_fit(self, number: int, view: str | None = None) -> bool:
        standing = self._ask(number)
        return standing is not None and not standing.unfit and view in (None, standing.view)

    def _ask(self, number: int) -> ServerRole | None:
        """Ask a server over a connection of its own; ``None`` if it does not answer."""
        try:
            connection = self._dialer.dial(number, _PROBE_S)
        except (MySQLError, OSError, EmsError):
            return None
        try:
            return standing_of(connection)
        except (MySQLError, OSError, EmsError):
            return None
        finally:
            _close(connection)


class SingleAddress(ServerSelector):
    """One server, or a router that leads each connection to a member of a replication group.

    Args:
        dialer: its only server is the address.
        only_reads: any member will do.
    """

    def __init__(self, dialer: Dialer, *, only_reads: bool = False) -> None:
        super().__init__(dialer)
        self._only_reads = only_reads
        self._members = 0  # of the replication group, as far as seen
        self._lookout: Connection | None = None  # to the member that is asked about a silent one
        self._looked_at = 0.0

    def open(self, answer_s: float | None = None) -> Connection:
        """Connect, again and again while that leads to different members that are not the primary."""
        reasons: dict[str, str] = {}
        last: tuple[Connection, ServerRole] | None = None
        until, tries = ticks() + self._dialer.connect_s, 0
        while tries < _MOST_MEMBERS and ticks() < until:  # they may not come in turn: other clients connect as well
            tries += 1
            if last is not None:
                last[0].close()
                last = None
            try:
                connection = self._dial(max(1, round(until - ticks())), answer_s)
                connection.wait_for(self._dialer.answer_s(answer_s))
                standing = standing_of(connection)
            except (MySQLError, OSError) as error:
                if not self._members:
                    raise
                reasons[self._dialer.address(0)] = f": {error}"
                continue
            self._members = max(self._members, standing.members)
            if self._is_enough(standing):
                if standing.kind == "group" and not self._only_reads:
                    # By its id: further connections may lead to others.
                    self._watch(connection, answer_s, standing.member, partial(self._is_replaced, standing.member))
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
        where = "" if len(reasons) == 1 else f"no server behind {self._dialer.address(0)} can be written to: "
        raise OperationalError(2003, where + "; ".join(server + reason for server, reason in reasons.items()))

    def still_serves(self, connection: Connection) -> bool:
        """Return whether the connection's member is still the primary."""
        self._dismiss_lookout()
        return super().still_serves(connection)

    def _is_behind(self, number: int, standing: ServerRole) -> bool:
        return False

    def _is_enough(self, standing: ServerRole) -> bool:
        if standing.kind != "group" or self._only_reads:
            return not standing.outside
        return not standing.unfit

    def _dial(self, connect_s: float, answer_s: float | None = None) -> Connection:
        greets_s = _MEMBER_GREETS_S if self._members else _GREETS_S
        alone = "unix_socket" in self._dialer.url.options
        return self._dialer.dial(0, connect_s, answer_s=answer_s, greets_s=None if alone else greets_s)

    def _is_replaced(self, member: str) -> bool:
        """Return whether a silent member is no primary any more, in the eyes of one that answers."""
        found = self._look_out()
        if found is None:
            return False
        return bool(found.unfit) if found.member == member else bool(found.primaries - {member})

    def _look_out(self) -> ServerRole | None:
        """Ask a member that answers, the same as the last time; ``None`` if none does.

        A router holds each connection that it has led to a frozen member, for as long as that is frozen, and takes some
        hundred in all: connecting anew for each look, processes would soon have used them up.
        """
        self._looked_at = ticks()
        if self._lookout is not None:
            try:
                return standing_now(self._lookout)
            except (MySQLError, OSError, EmsError):
                _close(self._lookout)
                self._lookout = None
        try:
            self._lookout = self._dial(_PROBE_S)
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


def _close(connection: Connection | None) -> None:
    with contextlib.suppress(Exception):
        if connection is not None:
            connection.close()
