"""Address of a stream, from an entry of Django's ``DATABASES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.db import connections

from emsworker.extending.errors import ConfigError, Problem

_FILES = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}
_PARTS = ("NAME", "HOST", "PORT", "USER", "PASSWORD")


def fingerprint(alias: str) -> tuple[Any, ...]:
    """Return the parts of an entry that change while a process runs: Django's tests replace the name."""
    settings = connections.settings[alias]
    return tuple(settings.get(part) for part in _PARTS)


def database_url(alias: str) -> str:
    """Return the URL of a database of ``DATABASES``.

    Raises:
        ConfigError: there is no such entry, it is not of MySQL or MariaDB, or it has options that have no URL.
    """
    if alias not in connections.settings:
        raise _wrong("database", alias, f"DATABASES has no such entry; it has {', '.join(connections.settings)}")
    if connections[alias].vendor != "mysql":
        engine = connections.settings[alias]["ENGINE"]
        raise _wrong(f"DATABASES[{alias!r}]", engine, "a stream needs django.db.backends.mysql; name another database")
    settings = connections.settings[alias]
    host = settings.get("HOST") or "127.0.0.1"
    query = _options(alias, settings.get("OPTIONS") or {})
    if host.startswith("/"):
        query["unix_socket"], host = host, "127.0.0.1"
    user, password = quote(settings.get("USER") or "", safe=""), quote(settings.get("PASSWORD") or "", safe="")
    account = f"{user}:{password}@" if user else ""
    url = f"mysql://{account}{host}:{settings.get('PORT') or 3306}/{quote(str(settings['NAME']), safe='')}"
    return f"{url}?{urlencode(query)}" if query else url


def _options(alias: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the part of the driver's options that says how to connect, as options of a URL."""
    if "read_default_file" in options:
        fix = "EMS reads no such file: give the stream's address as OPTIONS['url'] of TASKS"
        raise _wrong(f"DATABASES[{alias!r}]['OPTIONS']", "read_default_file", fix)
    found: dict[str, str] = {}
    if "unix_socket" in options:
        found["unix_socket"] = str(options["unix_socket"])
    if "ssl_mode" in options:
        found["ssl_mode"] = str(options["ssl_mode"]).lower()
    tls = options.get("ssl") or {}
    found |= {_FILES[name]: str(tls[name]) for name in _FILES if tls.get(name)}
    return found


def _wrong(name: str, value: str, fix: str) -> ConfigError:
    return ConfigError([Problem(name, repr(value), fix)])
