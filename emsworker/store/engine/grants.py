"""The privileges that each role needs, and no more: GRANT statements, from the table of :mod:`rights`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from emsworker.core.errors import InvalidName
from emsworker.store.engine.rights import RIGHTS, VERBS, Columns, Privileges, Rights, merge
from emsworker.store.engine.schema import table_columns
from emsworker.store.engine.standing import membership_grant

ROLES = tuple(role for role in RIGHTS if "+" not in role)
_WHOLE_ROLES = {"worker+beat": "beat"}  # an allowance that is all of another role
ALLOWANCES = tuple(sorted({role.partition("+")[2] for role in (*RIGHTS, *_WHOLE_ROLES)} - {""}))

# Names are put into statements, so only characters that need no quoting are allowed.
_DATABASE = re.compile(r"[\w$-]{1,64}", re.ASCII)
_ACCOUNT = re.compile(r"[\w.-]{1,80}@[\w.:%/-]{1,255}", re.ASCII)
_RESERVED = ("key", "offset", "partition")  # the columns whose names MySQL or MariaDB wants quoted


def statements(
    role: str,
    database: str,
    account: str,
    allow: Sequence[str] = (),
    *,
    in_group: bool = False,
    rights: Rights = RIGHTS,
) -> list[str]:
    """The GRANT statements of a role, for an administrator to run.

    Args:
        role: one of ``ROLES``.
        database: the name of the stream's database.
        account: ``user@host``, of a user that exists.
        allow: some of ``ALLOWANCES``: additional permissions of the role.
        in_group: the servers are members of a replication group, and the account must be able to read which one is the
            primary.
        rights: the rights of all roles.

    Raises:
        InvalidName: a name needs quoting, which is better done by hand, or the role has no such allowance.
    """
    if not _DATABASE.fullmatch(database):
        raise InvalidName(f"database {database!r}: only letters, digits, _, $ and - are put into statements")
    if not _ACCOUNT.fullmatch(account):
        raise InvalidName(f"account {account!r}: write user@host, like shop@10.0.0.%, of letters, digits and _.-%:/")
    user = "'{}'@'{}'".format(*account.split("@"))
    granted = [
        f"GRANT {_privileges(verbs)} ON {_on(database, table)} TO {user}"
        for part in _parts(role, allow, rights)
        for table, verbs in part.items()
    ]
    return [*granted, *([membership_grant(user)] if in_group else [])]


def _privileges(verbs: Mapping[str, Columns]) -> str:
    return ", ".join(f"{verb} ({_names(columns)})" if columns else verb for verb, columns in verbs.items())


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" if one in _RESERVED else one for one in columns)


def _on(database: str, table: str) -> str:
    # For a whole database _ is a wildcard.
    return f"`{database.replace('_', chr(92) + '_')}`.*" if table == "*" else f"`{database}`.{table}"


def privileges(role: str, allow: Sequence[str] = (), *, rights: Rights = RIGHTS) -> Privileges:
    """Return the privileges of a role: table -> some of ``VERBS`` -> columns.

    Args:
        role: one of ``ROLES``.
        allow: some of ``ALLOWANCES``: additional permissions of the role.
        rights: the rights of all roles.
    """
    found = merge(_parts(role, allow, rights))
    if "*" in found:
        found = dict.fromkeys(table_columns(), found["*"])
    return {table: {verb: verbs[verb] for verb in VERBS if verb in verbs} for table, verbs in found.items()}


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
    return [role for role in ROLES if _allowed(role, allowance) in RIGHTS]


def _parts(role: str, allow: Sequence[str], rights: Rights) -> list[Privileges]:
    for one in allow:
        if _allowed(role, one) not in rights:
            raise InvalidName(f"a {role} cannot be allowed to {one}: that is for {', '.join(roles_allowed(one))}")
    return [rights[role], *(rights[_allowed(role, one)] for one in allow)]


def _allowed(role: str, allowance: str) -> str:
    return _WHOLE_ROLES.get(f"{role}+{allowance}", f"{role}+{allowance}")
