"""Opens a connection to a server of a URL, and sets all that our statements depend on."""

from __future__ import annotations

import math
import ssl
from typing import Any

from pymysql.constants import CLIENT, FIELD_TYPE
from pymysql.converters import conversions
from pymysql.err import MySQLError

from emsworker.core.url import DatabaseUrl
from emsworker.store.engine.connection import SET_CLOCK, Connection
from emsworker.store.engine.sql import Statements, join
from emsworker.store.engine.standing import SHOW_STANDING
from emsworker.store.engine.tls import check_encrypted, mode_of, tls_context, tls_error

_SQL = Statements(__name__)
_READ_TIMEOUT_S = 60.0
_SEVERAL_CONNECT_S = 2.0  # if there are other servers: one that hangs must not delay them
# Dates stay text until they are needed: parsing one costs as much as the rest of a row.
_LAZY_DATES = {
    kind: reader for kind, reader in conversions.items() if kind not in (FIELD_TYPE.DATETIME, FIELD_TYPE.TIMESTAMP)
}


class Dialer:
    """Connects to the servers of a URL, with one attempt each time.

    Args:
        url: names one server or several.
        connect_timeout_s: seconds that one attempt may take, if the URL says nothing else.

    Attributes:
        connect_s: whole seconds that one attempt may take.
    """

    def __init__(self, url: DatabaseUrl, connect_timeout_s: float) -> None:
        self.url = url
        default = min(connect_timeout_s, _SEVERAL_CONNECT_S) if url.others else connect_timeout_s
        self.connect_s = max(1, round(float(url.options.get("connect_timeout_s", default))))

    def answer_s(self, asked_s: float | None) -> float:
        """Return the seconds after which a server that does not answer counts as lost."""
        return min(float(self.url.options.get("read_timeout_s", _READ_TIMEOUT_S)), asked_s or math.inf)

    def address(self, number: int) -> str:
        """Return host and port of a server."""
        host, port = self.url.servers[number]
        return f"{host}:{port}"

    def dial(
        self, number: int, connect_s: float, *, answer_s: float | None = None, greets_s: float | None = None
    ) -> Connection:
        """Connect to a server; each answer is waited for as long as the connection was, until that is set.

        Args:
            number: place of the server in the URL.
            connect_s: seconds that it may take.
            answer_s: seconds after which a server that takes nothing counts as lost, if the URL says no less.
            greets_s: seconds without a greeting after which another connection to the same address is tried; ``None``
                if it would lead to the same server.

        Raises:
            MySQLError, OSError, TlsError: it cannot be reached, or not as the URL asks.
        """
        options = self.url.options
        host, port = self.url.servers[number]
        context = tls_context(options)
        connection = _open_socket(
            context,
            greets_s,
            host=host,
            port=port,
            user=self.url.user,
            password=self.url.password.encode(),  # PyMySQL would encode it as Latin-1
            database=self.url.database,
            unix_socket=options.get("unix_socket"),
            charset="utf8mb4",
            autocommit=True,
            client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
            connect_timeout=connect_s,
            # The kernel of a frozen host completes the handshake, but the server sends no greeting.
            read_timeout=connect_s,
            write_timeout=self.answer_s(answer_s),
            ssl=context,
            ssl_disabled=mode_of(options) == "disabled",
            conv=_LAZY_DATES,
        )
        connection.number = number
        self._set_up(connection)
        return connection

    def _set_up(self, connection: Connection) -> None:
        """Set what our statements depend on, and learn which server it is, in one packet."""
        connection.query(join(";", (*connection.settings, _SQL.get_identity, SHOW_STANDING)))
        for _ in connection.settings:
            connection.next_result()
        limit, name, own_port = connection._result.rows[0]
        connection.max_allowed_packet = int(limit)
        address, port = self.address(connection.number), self.url.servers[connection.number][1]
        connection.server = address if own_port == port else f"{address} (there {name}:{own_port})"
        connection.next_result()
        connection.variables = dict(connection._result.rows)
        if connection.variables.get("secure_timestamp", "NO") == "NO":  # else no handler can set it either
            connection.settings = (SET_CLOCK, *connection.settings)
        if connection.variables.get("wsrep_on") == "ON":
            connection.one_by_one = True
            connection.settings = (*connection.settings, _SQL.set_galera)
            connection.query(_SQL.set_galera)


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
