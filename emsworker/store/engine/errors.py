"""Our own exceptions, and their translation from the server's error numbers."""

from __future__ import annotations

import re

from pymysql.err import DataError, IntegrityError, MySQLError, NotSupportedError, ProgrammingError

from emsworker.core.errors import (
    AccessDenied,
    AssertionBroken,
    ConfigError,
    Conflict,
    ConnectionLost,
    DiskFull,
    Duplicate,
    EmsError,
    LoginRefused,
    Problem,
    SchemaMissing,
    StatementRefused,
    TransactionGone,
)
from emsworker.core.process.address import address_name
from emsworker.core.process.role import check_command, grants_command
from emsworker.core.url import DatabaseUrl, redact

# The transaction is run again from its start: lock wait timeout, deadlock (also one between the nodes of a Galera
# cluster), snapshot conflict (MariaDB >= 11.6), conflict between the members of a replication group.
_CONFLICTS = frozenset({1205, 1213, 1020, 3101})
# A failed COMMIT. With error 149 (HA_ERR_LOCK_DEADLOCK) it is a conflict; otherwise the server could not commit.
_COMMIT_FAILED, _IN_CONFLICT = 1180, re.compile(r"\b149\b")
# These roll back the whole transaction; 1205 does so only if innodb_rollback_on_timeout is on.
_ROLLED_BACK, _MAY_ROLL_BACK = frozenset({1213, 1020, 3101}), frozenset({1205, 1206})
# A missing savepoint, by the name that session.sql gives it: the transaction is another one, or there is none.
_NO_SAVEPOINT, _SAVEPOINT = 1305, "ems_transaction"
# Our own assertions inside a packet: a scalar subquery that yields two rows (see session.sql), an offset that is NULL.
_ASSERTION, _NULL = 1242, 1048
_DUPLICATE = 1062
# The server itself cannot serve, whatever the statement is: not in the primary component of its Galera cluster, going
# down, read-only, without a majority of its replication group.
_AWAY = frozenset({1047, 1053, 1077, 1836, 3100, _COMMIT_FAILED})
_OPTION, _READ_ONLY = 1290, re.compile(r"read[-_]only", re.IGNORECASE)
# The disk is full: always (the first), or if the text names ENOSPC. Temporary: it ends when space is freed.
_FULL, _MAYBE_FULL, _NO_SPACE = frozenset({20, 1021, 1114}), frozenset({3, 1026, 1030, 1180}), re.compile(r"\b28\b")
_NO_LOGIN = frozenset({1044, 1045, 1698, 1251, 2059})  # the user, the password, its plugin, or the database
_DENIED = frozenset({1142, 1143, 1227, 1370}) | _NO_LOGIN
# There was no connection: too many of them, a host or a user that is blocked, a server that cannot be reached.
_NO_CONNECTION = frozenset({1040, 1129, 1130, 1203, 1226, 2002, 2003, 2005}) | _DENIED
_NO_DATABASE, _NO_TABLE, _NO_COLUMN = 1049, 1146, 1054
# The statement, or a value in it, is at fault, and the next try would end in the same way.
_STATEMENT = (DataError, IntegrityError, NotSupportedError, ProgrammingError)
# The same, of numbers to which the driver gives no class: no default, out of range, bad text, a table's constraint.
_AT_FAULT = frozenset({1054, 1064, 1264, 1364, 1366, 1406, 3819, 4025})


def code_of(error: BaseException) -> int:
    """Return the server's number of an error, or 0 if it has none."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def asserts(error: BaseException) -> bool:
    """Return whether an error, of any driver, is the failed assertion of a statement."""
    return code_of(error) == _ASSERTION


def rolls_back(error: BaseException) -> bool:
    """Return whether the server has rolled back the transaction with this error."""
    code = code_of(error)
    return code in _ROLLED_BACK or (code == _COMMIT_FAILED and _conflicts(error))


def _conflicts(error: BaseException) -> bool:
    code = code_of(error)
    return code in _CONFLICTS or (code == _COMMIT_FAILED and _IN_CONFLICT.search(_text_of(error)) is not None)


def _text_of(error: BaseException) -> str:
    return redact(str(error.args[-1] if error.args else error))


def may_roll_back(error: BaseException) -> bool:
    """Return whether the server, depending on its configuration, may have rolled back the transaction."""
    return code_of(error) in _MAY_ROLL_BACK


def is_cut(lost: BaseException | None) -> bool:
    """Return whether a loss may be the fault of what ran on the connection: of all errors but the known other ones.

    A number that is not known here is one of them: it is answered to a statement after a handler, such as by a trigger,
    and a message for which nobody ever counted it would run for ever.
    """
    cause = lost.__cause__ if lost is not None else None
    if cause is None or isinstance(cause, OSError):
        return True
    is_answer = isinstance(cause, MySQLError) and code_of(cause) not in _NO_CONNECTION
    return is_answer and not is_server_trouble(cause)


def is_server_trouble(error: BaseException) -> bool:
    """Return whether an error of a statement, ours or a handler's, says that the server cannot serve for now."""
    code = code_of(error)
    return (
        isinstance(error, MySQLError)
        and not _conflicts(error)
        and (code in _AWAY or (code == _OPTION and _READ_ONLY.search(_text_of(error)) is not None) or _is_full(error))
    )


def _is_full(error: BaseException) -> bool:
    code = code_of(error)
    return code in _FULL or (code in _MAYBE_FULL and _NO_SPACE.search(_text_of(error)) is not None)


def translate(error: BaseException, url: DatabaseUrl | None = None) -> BaseException:
    """Return our own exception for one of PyMySQL or of the socket; return others unchanged.

    Args:
        url: the server's address, to name the setting that it comes from.

    No error of the driver is left as it is: a number that is not known here counts as a lost connection, so the
    outcome of the last packet is unknown, unless the driver says that the statement is at fault.
    """
    if isinstance(error, OSError):
        return ConnectionLost(str(error))
    if not isinstance(error, MySQLError):
        return error
    code, text = code_of(error), _text_of(error)
    if _conflicts(error):
        return Conflict(text)
    if code == _ASSERTION or (code == _NULL and "'offset'" in text):
        return AssertionBroken(text)
    if code == _DUPLICATE:
        return Duplicate(text)
    if code == _NO_SAVEPOINT and _SAVEPOINT in text:
        return TransactionGone(text)
    if (fault := _fault_of_surroundings(code, text, url)) is not None:
        return fault
    if code in _AT_FAULT or isinstance(error, _STATEMENT):
        return StatementRefused(f"the server refused a statement of EMS: ({code}) {text}")
    if _is_full(error):
        return DiskFull(f"({code}) {text}; is the disk of the database server full? Make room, and all goes on")
    return ConnectionLost(f"({code}) {text}")


def _fault_of_surroundings(code: int, text: str, url: DatabaseUrl | None) -> EmsError | None:
    if code in _NO_LOGIN:
        return LoginRefused(
            f"MySQL refused: ({code}) {text}; check the user and password of {address_name(url)}, and "
            f"the user's rights on the database (`{grants_command()}` prints what a role needs)"
        )
    if code in _DENIED:
        return AccessDenied(
            f"MySQL refused: ({code}) {text}; check the user, password and grants of {address_name(url)} "
            f"(`{check_command()}` names what is missing, `{grants_command()}` prints what a role needs)"
        )
    if code == _NO_DATABASE:
        return ConfigError([Problem("url", text, "create the database first: CREATE DATABASE <name>")])
    if code in (_NO_TABLE, _NO_COLUMN):
        return SchemaMissing(f"the tables of EMS are missing or of another version ({text}); run `ems migrate`")
    return None
