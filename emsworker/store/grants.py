"""The privileges that each kind of user needs, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping

from emsworker.core.errors import InvalidName
from emsworker.store.schema import table_columns
from emsworker.store.sql import Statements

_SQL = Statements("grants")
ROLES = ("producer", "worker", "reader", "admin")
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE")

# They are put into statements, so only what needs no thought is let in.
_DATABASE = re.compile(r"[\w$-]{1,64}", re.ASCII)
_ACCOUNT = re.compile(r"[\w.-]{1,80}@[\w.:%/-]{1,255}", re.ASCII)
_GRANT = re.compile(r"GRANT (.+) ON \{(?:database|pattern)\}\.(\S+) TO")
_VERB = re.compile(r"([A-Z]+)(?: \((\w+)[^)]*\))?(?:, |$)")


def statements(role: str, database: str, account: str) -> list[str]:
    """The GRANT statements of a role, for an administrator to run.

    Args:
        role: one of ``ROLES``.
        database: the stream's.
        account: ``user@host``, of a user that exists.

    Raises:
        InvalidName: such a name needs quoting that is better done by hand.
    """
    if not _DATABASE.fullmatch(database):
        raise InvalidName(f"database {database!r}: only letters, digits, _, $ and - are put into statements")
    if not _ACCOUNT.fullmatch(account):
        raise InvalidName(f"account {account!r}: write user@host, like shop@10.0.0.%, of letters, digits and _.-%:/")
    user, _, host = account.partition("@")
    names = {
        "database": f"`{database}`",
        "pattern": f"`{database.replace('_', chr(92) + '_')}`",  # for a whole database _ is a wildcard
        "user": f"'{user}'@'{host}'",
    }
    return [line.rstrip(";").format(**names) for line in _lines(role)]


def needs(role: str) -> Mapping[str, Mapping[str, str | None]]:
    """The tables that a role works with: table -> some of ``VERBS`` -> a column, where it may touch only some."""
    found: dict[str, Mapping[str, str | None]] = {}
    for line in _lines(role):
        match = _GRANT.match(line)
        assert match is not None, line
        verbs = {verb: column or None for verb, column in _VERB.findall(match[1]) if verb in VERBS}
        found |= dict.fromkeys(table_columns() if match[2] == "*" else [match[2]], verbs)
    return found


def _lines(role: str) -> list[str]:
    text: str = getattr(_SQL, role)
    return text.splitlines()
