"""URLs of a stream as Celery and kombu hand them over, and the options in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from emsworker.extending.settings import UNENCODED, DatabaseUrl, check_signs, redact_url

_PREFIX = "ems+"
_SCHEMES = ("ems", "mysql", "mariadb", "mysql+pymysql")
_EXAMPLE = "ems+mysql://user:password@host:3306/database"
# Options of kombu's and Celery's other transports by which users ask for TLS.
_TLS = {
    "ssl_ca_certs": "ssl_ca",
    "ca_certs": "ssl_ca",
    "ssl_certfile": "ssl_cert",
    "certfile": "ssl_cert",
    "ssl_keyfile": "ssl_key",
    "keyfile": "ssl_key",
}


@dataclass(frozen=True)
class StreamUrl:
    """The address of a stream, and options that follow it.

    Attributes:
        database: ``mysql://user:password@host:port/database?option=value``, as :class:`DatabaseUrl` takes it.
        options: the other options, by name: text from a URL.
    """

    database: str = field(repr=False)
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> StreamUrl:
        """Parse ``ems+mysql://...``, ``ems://...`` or, as Celery gives it to result backends, ``mysql://...``.

        Raises:
            ValueError: it is malformed; the text never repeats the password.
        """
        scheme, separator, rest = text.removeprefix(_PREFIX).partition("://")
        if not separator or scheme not in _SCHEMES:
            raise ValueError(f"{redact_url(text)!r} is not the URL of a stream; write {_EXAMPLE}")
        address, _, query = rest.partition("?")
        pairs = parse_qsl(query, keep_blank_values=True)
        own = [(name, value) for name, value in pairs if name in DatabaseUrl.OPTIONS]
        database = f"mysql://{address}" + (f"?{urlencode(own)}" if own else "")
        try:
            check_signs(text)
            DatabaseUrl.parse(database)
        except ValueError as error:
            raise ValueError(
                f"the URL of the stream is wrong: {error}".replace("mysql://user", "ems+mysql://user")
            ) from None
        return cls(database, {name: value for name, value in pairs if name not in DatabaseUrl.OPTIONS})

    @classmethod
    def of_connection(cls, client: Any) -> StreamUrl:
        """Return the URL of a kombu connection, which keeps one with ``ems+`` whole and takes every other apart.

        Raises:
            ValueError: its parts make no URL of a stream.
        """
        host = (client.hostname or "127.0.0.1").removeprefix(_PREFIX)
        if "://" in host:
            return cls.parse(_with_query(host, tls_options(client.ssl)))
        # kombu has taken it apart, and what follows an unencoded / or @ of a password would be named in errors.
        if "@" in host or "@" in (client.virtual_host or ""):
            raise ValueError(f"the URL of the stream is wrong: {UNENCODED}")
        account = quote(client.userid or "root", safe="")
        if client.password:
            account += f":{quote(_called(client.password), safe='')}"
        address = f"{account}@{_host(host)}:{client.port or 3306}/{quote((client.virtual_host or '').lstrip('/'))}"
        return cls.parse(_with_query(f"mysql://{address}", tls_options(client.ssl)))

    def shown(self) -> str:
        """Return the URL without secrets, for logs."""
        return redact_url(f"{_PREFIX}{self.database.partition('?')[0]}")


def tls_options(given: Any) -> dict[str, str]:
    """Return the options of a URL that are the same as an argument ``ssl``: True, or options by their kombu names."""
    if not given:
        return {}
    if not isinstance(given, Mapping):
        return {"ssl_mode": "required"}
    named = {_TLS.get(str(name), str(name)): str(value) for name, value in given.items() if value is not None}
    found = {name: value for name, value in named.items() if name in DatabaseUrl.OPTIONS}
    return found or {"ssl_mode": "required"}


def _with_query(url: str, options: Mapping[str, str]) -> str:
    if not options:
        return url
    return f"{url}{'&' if '?' in url else '?'}{urlencode(options)}"


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") and "," not in host else host


def _called(password: Any) -> str:
    return str(password() if callable(password) else password)
