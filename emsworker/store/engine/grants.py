"""The privileges that each role needs, and no more."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from emsworker.core.errors import InvalidName
from emsworker.store.engine.sql import Statements
from emsworker.store.engine.standing import membership_grant
from emsworker.store.engine.tables import table_columns

_SQL = Statements(__name__)
ROLES = ("publisher", "producer", "worker", "beat", "celery", "viewer", "reader", "operator", "sink", "admin")
ALLOWANCES = ("auto-create", "beat", "cancel", "hold")
_WHOLE_ROLES = {("worker", "beat"): "beat"}  # an allowance that is all of another role
VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE")

# Names are put into statements, so only characters that need no quoting are allowed.
_DATABASE = re.compile(r"[\w$-]{1,64}", re.ASCII)
_ACCOUNT = re.compile(r"[\w.-]{1,80}@[\w.:%/-]{1,255}", re.ASCII)
_GRANT = re.compile(r"GRANT (.+) ON \{(?:database|pattern)\}\.(\S+) TO")
_PRIVILEGE = re.compile(r"([A-Z]+)(?: \(([^)]*)\))?(?:, |$)")


def statements(
    role: str, database: str, account: str, allow: Sequence[str] = (), *, in_group: bool = False
) -> list[str]:
    """The GRANT statements of a role, for an administrator to run.

    Args:
        role: one of ``ROLES``.
        database: the name of the stream's database.
        account: ``user@host``, of a user that exists.
        allow: some of ``ALLOWANCES``: additional permissions of the role.
        in_group: the servers are members of a replication group, and the account must be able to read which one is the
            primary.

    Raises:
        InvalidName: a name needs quoting, which is better done by hand, or the role has no such allowance.
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
    lines = [*_lines(role, allow), *([membership_grant("{user}")] if in_group else [])]
    return [line.rstrip(";").format(**names) for line in lines]


Columns = tuple[str, ...] | None
"""The columns for which a privilege is granted; ``None`` for the whole table."""


def privileges(role: str, allow: Sequence[str] = ()) -> Mapping[str, Mapping[str, Columns]]:
    """Return the privileges of a role: table -> some of ``VERBS`` -> columns.

    Args:
        role: one of ``ROLES``.
        allow: some of ``ALLOWANCES``: additional permissions of the role.
    """
    found: dict[str, dict[str, Columns]] = {}
    for line in _lines(role, allow):
        match = _GRANT.match(line)
        assert match is not None, line
        for table in table_columns() if match[2] == "*" else [match[2]]:
            verbs = found.setdefault(table, {})
            for verb, named in _PRIVILEGE.findall(match[1]):
                if verb in VERBS:
                    columns = tuple(re.findall(r"\w+", named)) or None
                    before = verbs.get(verb, ())
                    verbs[verb] = (columns and before is not None and tuple(dict.fromkeys(before + columns))) or None
    return found


def needs(role: str, allow: Sequence[str] = ()) -> Mapping[str, Mapping[str, str | None]]:
    """Return the tables of a role: table -> some of ``VERBS`` -> a column if only some are granted, else ``None``.

    Args:
        role: one of ``ROLES``.
        allow: some of ``ALLOWANCES``: additional permissions of the role.
    """
    return {
        table: {verb: columns[-1] if columns else None for verb, columns in verbs.items()}
        for table, verbs in privileges(role, allow).items()
    }


def roles_with(verb: str, table: str, column: str | None = None) -> list[str]:
    """Return the roles that have a privilege on a column of a table, or on any.

    Args:
        verb: one of ``VERBS``.
    """
    return [role for role in ROLES if _gives(privileges(role).get(table, {}), verb, column)]


def _gives(verbs: Mapping[str, Columns], verb: str, column: str | None) -> bool:
    columns = verbs.get(verb, ())
    return columns is None or (column in columns if column is not None else bool(columns))


def roles_allowed(allowance: str) -> list[str]:
    """Return the roles that one of ``ALLOWANCES`` is for."""
    return [role for role in ROLES if _section(role, allowance) in _SQL]


def _lines(role: str, allow: Sequence[str] = ()) -> list[str]:
    sections = [role, *(_section(role, one) for one in allow)]
    for section, one in zip(sections[1:], allow, strict=True):
        if section not in _SQL:
            raise InvalidName(f"a {role} cannot be allowed to {one}: that is for {', '.join(roles_allowed(one))}")
    return [line for section in sections for line in _SQL[section].splitlines()]


def _section(role: str, allowance: str) -> str:
    return _WHOLE_ROLES.get((role, allowance)) or f"{role}_{allowance.replace('-', '_')}"
