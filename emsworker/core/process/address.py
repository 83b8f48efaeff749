"""Name of the setting that the stream's address comes from, for errors about it."""

from __future__ import annotations

import os

from emsworker.core.url import DatabaseUrl

VARIABLE = "EMS_URL_NAME"
"""Variable in which a framework's command names its own setting to the ``ems`` command that it becomes."""
_names: list[str] = []
_others: dict[tuple[object, ...], str] = {}
_accounts: dict[tuple[object, ...], list[str]] = {}


def name_address(name: str) -> None:
    """Set the name for this process, such as ``DATABASES['default']``. The first call wins."""
    if not _names:
        _names.append(name)


def name_server(name: str, url: str) -> None:
    """Note which of the setting ``servers`` has an address, for this process."""
    _others[_place(DatabaseUrl.parse(url))] = f"server {name!r} in EMS_SERVERS"


def name_url(name: str, url: str) -> None:
    """Note which setting has an address with this account, for this process; several settings may have the same one."""
    names = _accounts.setdefault(_account(DatabaseUrl.parse(url)), [])
    if name not in names:
        names.append(name)


def _account(url: DatabaseUrl) -> tuple[object, ...]:
    return *_place(url), url.user, url.password


def _place(url: DatabaseUrl) -> tuple[object, ...]:
    return url.servers, url.options.get("unix_socket"), url.database


def address_name(url: DatabaseUrl | None = None) -> str:
    """Return the name of the setting: ``EMS_URL`` if nobody has given another.

    Args:
        url: the address, which may be that of one of several servers.
    """
    own = _names[0] if _names else os.environ.get(VARIABLE) or "EMS_URL"
    if url is None:
        return own
    accounts = _accounts.get(_account(url))
    return " and ".join(accounts) if accounts else _others.get(_place(url), own)


def address_place(url: str) -> str:
    """Return where a command's address is given: an option or a variable, or the setting of a framework."""
    name = address_name(DatabaseUrl.parse(url))
    return "--url or EMS_URL" if name == "EMS_URL" else name
