"""The privileges that each role needs, and no more: GRANT statements, from the tables of rights."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from emsworker.core.errors import InvalidName
from emsworker.core.extension import Extension, extensions, load
from emsworker.store.engine.rights import CORE, VERBS, Columns, Privileges, combine, merge
from emsworker.store.engine.standing import membership_grant
from emsworker.store.engine.tables import has_tables, table_columns

_WHOLE_ROLES = {"worker+beat": "beat"}  # an allowance that is all of another role

# Names are put into statements, so only characters that need no quoting are allowed.
_DATABASE = re.compile(r"[\w$-]{1,64}", re.ASCII)
_ACCOUNT = re.compile(r"[\w.-]{1,80}@[\w.:%/-]{1,255}", re.ASCII)
_RESERVED = ("key", "offset", "partition")  # the columns whose names MySQL or MariaDB wants quoted


class Grants:
    """The roles of a stream and their privileges.

    Args:
        used: the extensions whose roles and tables count.

    Attributes:
        roles: their names.
        allowances: additional permissions of some of them.
    """

    def __init__(self, used: Iterable[Extension] = ()) -> None:
        extensions = list(used)
        self._rights = combine(CORE, *(load(one.rights) for one in extensions if one.rights is not None))
        self.columns = table_columns(extensions)
        self.roles = tuple(role for role in self._rights if "+" not in role)
        allowed = {role.partition("+")[2] for role in (*self._rights, *_WHOLE_ROLES)}
        self.allowances = tuple(sorted(allowed - {""}))

    def statements(
        self, role: str, database: str, account: str, allow: Sequence[str] = (), *, in_group: bool = False
    ) -> list[str]:
        """Return the GRANT statements of a role, for an administrator to run.

        Args:
            role: one of the roles.
            database: the name of the stream's database.
            account: ``user@host``, of a user that exists.
            allow: some of the allowances.
            in_group: the servers are members of a replication group, and the account must be able to read which one is
                the primary.

        Raises:
            InvalidName: a name needs quoting, which is better done by hand, or the role has no such allowance.
        """
        if not _DATABASE.fullmatch(database):
            raise InvalidName(f"database {database!r}: only letters, digits, _, $ and - are put into statements")
        if not _ACCOUNT.fullmatch(account):
            raise InvalidName(
                f"account {account!r}: write user@host, like shop@10.0.0.%, of letters, digits and _.-%:/"
            )
        user = "'{}'@'{}'".format(*account.split("@"))
        granted = [
            f"GRANT {_privileges(verbs)} ON {_on(database, table)} TO {user}"
            for part in self._parts(role, allow)
            for table, verbs in part.items()
        ]
        return [*granted, *([membership_grant(user)] if in_group else [])]

    def privileges(self, role: str, allow: Sequence[str] = ()) -> Privileges:
        """Return the privileges of a role: table -> some of ``VERBS`` -> columns.

        Args:
            role: one of the roles.
            allow: some of the allowances.
        """
        found = merge(self._parts(role, allow))
        if "*" in found:
            found = dict.fromkeys(self.columns, found["*"])
        return {table: {verb: verbs[verb] for verb in VERBS if verb in verbs} for table, verbs in found.items()}

    def needs(self, role: str, allow: Sequence[str] = ()) -> Mapping[str, Mapping[str, str]]:
        """Return one column for each privilege of a role that it covers: table -> some of ``VERBS`` -> column."""
        return {
            table: {verb: columns[-1] if columns else self.columns[table] for verb, columns in verbs.items()}
            for table, verbs in self.privileges(role, allow).items()
        }

    def roles_with(self, verb: str, table: str, column: str | None = None) -> list[str]:
        """Return the roles that have a privilege on a column of a table, or on any.

        Args:
            verb: one of ``VERBS``.
        """
        return [role for role in self.roles if _gives(self.privileges(role).get(table, {}), verb, column)]

    def roles_allowed(self, allowance: str) -> list[str]:
        """Return the roles that an allowance is for."""
        return [role for role in self.roles if _allowed(role, allowance) in self._rights]

    def _parts(self, role: str, allow: Sequence[str]) -> list[Privileges]:
        for one in allow:
            if _allowed(role, one) not in self._rights:
                names = ", ".join(self.roles_allowed(one))
                raise InvalidName(f"a {role} cannot be allowed to {one}: that is for {names}")
        return [self._rights[role], *(self._rights[_allowed(role, one)] for one in allow)]


def bringing(role: str) -> list[Extension]:
    """Return the installed extensions that a role of theirs, or of no tables, comes from."""
    core = Grants()
    return [
        one
        for one in extensions().values()
        if one.rights is not None and (not has_tables(one) or (role not in core.roles and role in load(one.rights)))
    ]


def _privileges(verbs: Mapping[str, Columns]) -> str:
    return ", ".join(f"{verb} ({_names(columns)})" if columns else verb for verb, columns in verbs.items())


def _names(columns: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" if one in _RESERVED else one for one in columns)


def _on(database: str, table: str) -> str:
    # For a whole database _ is a wildcard.
    return f"`{database.replace('_', chr(92) + '_')}`.*" if table == "*" else f"`{database}`.{table}"


def _gives(verbs: Mapping[str, Columns], verb: str, column: str | None) -> bool:
    columns = verbs.get(verb, ())
    return columns is None or (column in columns if column is not None else bool(columns))


def _allowed(role: str, allowance: str) -> str:
    return _WHOLE_ROLES.get(f"{role}+{allowance}", f"{role}+{allowance}")
