"""Server addresses as URLs, and how to show them without their secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

# Up to the last @ of the line, because a password may contain one itself: hiding too much does no harm.
# A URL may also end with its host, in quotes before a colon, or have been hidden already: what follows is a text.
_SECRET = re.compile(r"://(?:(?!['\"]: )[^:/@\s])*:(?!\*\*\*@)")
_SECRET_OPTION = re.compile(r"([?&](?:password|passwd|pwd|secret|token)=)[^&\s'\"]*", re.IGNORECASE)
# Text in place of a port that is not a port: a password whose @host was forgotten.
_ONLY_USER = re.compile(r"[\w+]+://[^:@/\s]*@[^@]*$")
_NO_PORT = re.compile(r"(://[^:/\s]*:)(?!\d+(?:[/?,]|$))[^/?\s]*")


_ENCODED = "write @ as %40, / as %2F, # as %23 and ? as %3F in a user or password"
UNENCODED = f"it has an unencoded sign, such as @, in its user or password: {_ENCODED}"
"""Said of a URL with a sign that must be percent-encoded."""


def redact(text: str) -> str:
    """Hide the password in every URL of a text."""
    return _SECRET_OPTION.sub(r"\1***", "\n".join(map(_without_secret, text.split("\n"))))


def _without_secret(line: str) -> str:
    # The last @ is looked for once: one expression with `.*@` would look for it from every :// of somebody's text.
    end = line.rfind("@")
    found = _SECRET.search(line, 0, end + 1)
    return line if found is None else f"{line[: found.end()]}***{line[end:]}"


def redact_url(text: str) -> str:
    """Hide the password in a text that is meant to be a URL, even if it is malformed."""
    hidden = redact(text)
    if hidden != text:
        return hidden
    if "@" in text and not _ONLY_USER.match(text):
        return f"***{text[text.rindex('@') :]}"
    return _NO_PORT.sub(r"\1***", text)


def check_signs(text: str) -> None:
    """Refuse a URL whose password is cut by a sign in it: errors would name the rest as a host, a database, an option.

    Raises:
        ValueError: a sign must be percent-encoded; the text repeats nothing of the URL.
    """
    rest, number, _ = text.partition("://")[2].partition("#")
    address, _, query = rest.partition("?")
    names = [pair.partition("=")[0] for pair in query.split("&")]
    if number or address.count("@") > 1 or "@" in address.partition("/")[2] or any("@" in name for name in names):
        raise ValueError(UNENCODED)


def impatient(url: str, read_timeout_s: float) -> str:
    """Return an address with this time-out for an answer, unless it has one of its own."""
    if "read_timeout_s" in DatabaseUrl.parse(url).options:
        return url
    return f"{url}{'&' if '?' in url else '?'}read_timeout_s={read_timeout_s:g}"


@dataclass(frozen=True)
class DatabaseUrl:
    """Address of the stream's server: ``mysql://user:password@host:port/database?option=value``.

    If there are several servers, ``host1:3306,host2:3306``, the one that can be written to is used.

    Options: ``unix_socket``, ``ssl_ca``, ``ssl_cert``, ``ssl_key`` (paths), ``ssl_mode``, ``connect_timeout_s``,
    ``read_timeout_s``.

    ``ssl_mode`` has the values of MySQL's own client: ``disabled``; ``preferred``, the default, uses TLS if the server
    offers it; ``required`` refuses to connect without; ``verify_ca`` requires a certificate signed by ``ssl_ca`` (or by
    a CA that the system trusts); ``verify_identity``, the default with ``ssl_ca``, also one for this host.
    """

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    database: str
    options: Mapping[str, str]
    others: tuple[tuple[str, int], ...] = ()

    OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key", "ssl_mode", "connect_timeout_s", "read_timeout_s")
    SSL_MODES = ("disabled", "preferred", "required", "verify_ca", "verify_identity")

    @classmethod
    def parse(cls, text: str) -> DatabaseUrl:
        """Parse a URL.

        Raises:
            ValueError: it is malformed; the text never repeats the password.
        """
        check_signs(text)
        text, other_servers = _first_server(text)
        try:
            parts = urlsplit(text)
        except ValueError:  # its own text may repeat the password
            raise ValueError("its host is malformed; write mysql://user:password@host:3306/database") from None
        if "://" not in text:
            raise ValueError("it has no ://; write mysql://user:password@host:3306/database")
        if parts.scheme not in ("mysql", "mariadb", "mysql+pymysql"):
            raise ValueError(f"its scheme is {parts.scheme!r}; write mysql://user:password@host:3306/database")
        port = _port(parts)
        others = tuple((server.hostname or "127.0.0.1", _port(server)) for server in map(_server, other_servers))
        database = unquote(parts.path.lstrip("/"))
        if not database:
            raise ValueError("it names no database; write mysql://user:password@host:3306/database")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        for name in options:
            if name not in cls.OPTIONS:
                raise ValueError(f"its option {name!r} is not known; known are {', '.join(cls.OPTIONS)}")
        for name in ("connect_timeout_s", "read_timeout_s"):
            if name in options:
                _positive(name, options[name])
        _check_tls(options)
        user, password = unquote(parts.username or "root"), unquote(parts.password or "")
        if others and "unix_socket" in options:
            raise ValueError("it names several servers and a unix_socket; a socket leads to one server only")
        return cls(parts.hostname or "127.0.0.1", port, user, password, database, options, others)

    @property
    def servers(self) -> tuple[tuple[str, int], ...]:
        """Host and port of every server, in the order of the URL."""
        return ((self.host, self.port), *self.others)


def _first_server(text: str) -> tuple[str, list[str]]:
    """Return the URL with its first server only, and the other servers."""
    scheme, separator, rest = text.partition("://")
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    account, at, servers = netloc.rpartition("@")
    first, *others = servers.split(",")
    return f"{scheme}{separator}{account}{at}{first}{rest[len(netloc) :]}", others


def _server(text: str) -> SplitResult:
    try:
        parts = urlsplit(f"//{text}")
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if not parts.hostname:
        raise ValueError("one of its servers is malformed; write mysql://user:password@host1:3306,host2:3306/database")
    return parts


def _port(parts: SplitResult) -> int:
    try:
        return parts.port or 3306
    except ValueError:
        raise ValueError(f"its port is not a number from 0 to 65535 ({_ENCODED})") from None


def _check_tls(options: Mapping[str, str]) -> None:
    mode = options.get("ssl_mode")
    if mode is not None and mode not in DatabaseUrl.SSL_MODES:
        raise ValueError(f"its option ssl_mode={mode!r} is not known; known are {', '.join(DatabaseUrl.SSL_MODES)}")
    files = [name for name in ("ssl_ca", "ssl_cert", "ssl_key") if name in options]
    if files and mode in ("disabled", "preferred"):
        raise ValueError(f"its option {files[0]} needs ssl_mode=required or more, not {mode}")
    if "ssl_key" in options and "ssl_cert" not in options:
        raise ValueError("its option ssl_key needs ssl_cert")


def _positive(name: str, value: str) -> None:
    try:
        if float(value) > 0:
            return
    except ValueError:
        pass
    raise ValueError(f"its option {name}={value!r} is not a number of seconds above 0")
