"""A Celery project on private servers. These tests run by ``./dev test-celery`` only, which installs Celery."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest

from emsworker.core.url import DatabaseUrl
from emsworker.local import LocalDatabase
from tests.celery.brokers import Broker, ems
from tests.celery.chaos import DatabaseFaults
from tests.celery.kombu_program import Program
from tests.celery.project import Project
from tests.support.servers import TestServers, few_flavors

collect_ignore_glob = [] if os.environ.get("EMS_TEST_CELERY") else ["test_*.py"]


@pytest.fixture(scope="session", params=few_flavors())
def server(servers: TestServers, request: pytest.FixtureRequest) -> LocalDatabase:
    """One flavor."""
    return servers.database(request.param)


@pytest.fixture
def broker(database: str) -> Broker:
    """EMS, with its tables and nothing in them."""
    return ems(database)


@pytest.fixture
def faults(server: LocalDatabase, database: str) -> DatabaseFaults:
    """What may happen to the broker."""
    return DatabaseFaults(server, database.rpartition("/")[2])


@pytest.fixture
def start(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """``start(lease_s=3)``: a project with these options of the transport."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Project(broker, tmp_path, options))


@pytest.fixture
def project(start: Callable[..., Project]) -> Project:
    """A project with the transport's own options."""
    return start()


@pytest.fixture
def program(broker: Broker) -> Iterator[Callable[..., Program]]:
    """``program()``: one more program."""
    with ExitStack() as stack:
        count = iter(range(100, 200))

        def make(**options: Any) -> Program:
            made = Program(broker, next(count), **options)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def rows(broker: Broker) -> Iterator[Callable[..., list[tuple[Any, ...]]]]:
    """``rows(sql)``: what is in the database."""
    at = DatabaseUrl.parse(broker.url.removeprefix("ems+"))
    account = {"host": at.host, "port": at.port, "user": at.user, "password": at.password}
    with pymysql.connect(**account, database=at.database, autocommit=True) as connection:

        def read(sql: str, *args: Any) -> list[tuple[Any, ...]]:
            with connection.cursor() as cursor:
                cursor.execute(sql, args)
                return list(cursor.fetchall())

        yield read
