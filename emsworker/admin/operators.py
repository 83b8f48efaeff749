"""Check of a second database user, which makes the changes on a stream that another one reads."""

from __future__ import annotations

from emsworker.core.errors import AccessDenied, ConfigError, Problem, SchemaMissing
from emsworker.core.url import redact_url
from emsworker.store.engine import probe, schema
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session

_MOST_NAMED = 3


def check_operator(reads: tuple[str, Database], changes: tuple[str, Database], name: str) -> None:
    """Check that changes are made on the stream that is read, by a user with the privileges of an operator.

    Args:
        reads, changes: address and database of each.
        name: the setting with the address for changes.

    Raises:
        ConfigError: another stream, missing privileges, or the server refuses the user.
        StoreUnavailable, AccessDenied, SchemaMissing: the stream that is read cannot tell which one it is, or the
            server of the other one is away.
    """
    wanted = reads[1].call(schema.stream_id)
    try:
        found = changes[1].call(_stream_and_lacks)
    except AccessDenied as error:
        reason = str(error).partition("; check")[0]
        raise _refused(name, changes[0], f"{reason}; check its user, password and grants") from None
    except ConfigError as error:  # it knows the fault, but not the name of the setting
        raise _refused(name, changes[0], "; ".join(one.value for one in error.problems)) from None
    except SchemaMissing:
        found = "", []
    if found[0] != wanted:
        fix = f"is not the stream of {redact_url(reads[0])}; both must lead to the same database"
        raise _refused(name, changes[0], fix)
    if lacks := found[1]:
        more = f" and {len(lacks) - _MOST_NAMED} more" if len(lacks) > _MOST_NAMED else ""
        fix = f"this user lacks {', '.join(lacks[:_MOST_NAMED])}{more}; `ems grants operator` prints what to grant"
        raise _refused(name, changes[0], fix)


def _stream_and_lacks(session: Session) -> tuple[str, list[str]]:
    return schema.stream_id(session), probe.missing_privileges(session, migrated=True, role="operator")


def _refused(name: str, url: str, fix: str) -> ConfigError:
    return ConfigError([Problem(name, redact_url(url), fix)])
