"""The grants of a role are what its statements need: all of them run with the grants, and without any one some do not."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.grants import ALLOWANCES, ROLES
from emsworker.store.engine.sql import Statements
from tests.security.role_statements import RUNS, refused, texts
from tests.support.roles import MakeUser, users
from tests.support.servers import connect
from tests.support.statements import sql_files
from tests.support.streams import Stream

# What only one of the servers asks for, on the table: MySQL wants UPDATE of something where a row is locked, MariaDB
# wants it for all columns that an INSERT .. ON DUPLICATE KEY UPDATE names.
_ASKED_BY = {
    "ems_alarm_rule UPDATE name": "mysql",
    "ems_retry SELECT claim_id": "mysql",
    "ems_cursor UPDATE skipped": "mysql",
    "ems_partition UPDATE partition": "mariadb",
}
_ADMIN_ONLY = {"archive", "grants", "probe", "putback", "replay", "session"}
_GRANT = re.compile(r"GRANT (.+) ON \S+?\.(ems_\w+) TO")
_VERB = re.compile(r"([A-Z]+)(?: \(([^)]*)\))?(?:, |$)")


class Privilege(NamedTuple):
    table: str
    verb: str
    column: str | None

    def __str__(self) -> str:
        return " ".join(filter(None, self))


def _privileges(section: str) -> Iterator[Privilege]:
    for line in getattr(Statements("emsworker.store.engine.grants"), section).splitlines():
        match = _GRANT.match(line)
        assert match is not None, line
        for verb, columns in _VERB.findall(match[1]):
            for column in columns.split(", ") if columns else [None]:
                yield Privilege(match[2], verb, column and column.strip("`"))


def test_every_section_of_the_grants_is_tried() -> None:
    assert {*RUNS, "admin"} == set(Statements("emsworker.store.engine.grants")._statements)
    assert {section.partition("_")[0] for section in RUNS} == {*ROLES} - {"admin"}
    assert {section.partition("_")[2].replace("_", "-") for section in RUNS} - {""} == {*ALLOWANCES}


def test_every_module_of_the_store_belongs_to_a_role() -> None:
    modules = {path.stem for path in sql_files()}
    assert modules == _ADMIN_ONLY | {module for runs in RUNS.values() for module in runs}


@pytest.fixture
def make_user(stream: Stream, server: Server) -> Iterator[MakeUser]:
    with users(server, stream.url) as make:
        yield make


def test_each_role_has_all_that_it_needs_and_nothing_more(stream: Stream, server: Server, make_user: MakeUser) -> None:
    missing, useless = {}, []
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as rights:
        for section in RUNS:
            role, _, allowance = section.partition("_")
            work = [*texts(section)]
            assert work
            with connect(make_user(role, [allowance.replace("_", "-")] if allowance else [])) as user:
                missing |= {(section, name): told for name, text in work if (told := refused(user, name, text))}
                for privilege in _privileges(section):
                    if _ASKED_BY.get(str(privilege), server.flavor) == server.flavor:
                        with _without(privilege, user, rights):
                            if not any(refused(user, name, text) for name, text in work if privilege.table in text):
                                useless.append((section, str(privilege)))
    assert (missing, useless) == ({}, [])


@contextlib.contextmanager
def _without(privilege: Privilege, user: Any, rights: Any) -> Iterator[None]:
    with user.cursor() as cursor:
        cursor.execute("SELECT CURRENT_USER(), DATABASE()")
        account, database = cursor.fetchone()
    column = "" if privilege.column is None else f" (`{privilege.column}`)"
    on = f"{privilege.verb}{column} ON `{database}`.{privilege.table}"
    quoted = "'{}'@'{}'".format(*account.split("@"))
    rights.execute(f"REVOKE {on} FROM {quoted}")
    yield
    rights.execute(f"GRANT {on} TO {quoted}")


def test_an_admin_runs_every_statement(stream: Stream, make_user: MakeUser) -> None:
    with connect(make_user("admin")) as user:
        denied = [name for section in RUNS for name, text in texts(section) if refused(user, name, text)]
    assert denied == []
