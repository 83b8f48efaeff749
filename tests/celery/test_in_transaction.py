"""Tasks that are published in the caller's transaction: committed with the order, and rolled back with it."""

import os
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
import sqlalchemy
from celery import Celery
from sqlalchemy.orm import Session

from emsworker.integrations.celery import in_transaction
from emsworker.store.engine.database import Database
from tests.celery.programs import take_all
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.worker import ROOT


@pytest.fixture
def app(database: str) -> Iterator[Celery]:
    with Database(database).session() as session:
        migrate(session)
    connection = connect(database)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (number INT PRIMARY KEY) ENGINE=InnoDB")
    connection.close()
    app = Celery(f"t{uuid.uuid4().hex}", broker=f"ems+{database}", backend=f"ems+{database}", set_as_current=False)
    yield app
    app.backend._storage.close()
    app.close()


def _orders(database: str) -> list[int]:
    connection = connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT number FROM orders ORDER BY number")
            return [number for (number,) in cursor.fetchall()]
    finally:
        connection.close()


def _received(app: Celery) -> list[int]:
    """The arguments of the tasks in the queue."""
    return [arguments[0] for arguments, _, _ in take_all(app, "celery")]


@contextmanager
def _pymysql(database: str) -> Iterator[tuple[Any, Callable[[int], object]]]:
    connection = connect(database)
    try:
        yield connection, lambda number: connection.cursor().execute("INSERT INTO orders VALUES (%s)", (number,))
    finally:
        connection.close()


@contextmanager
def _session(database: str) -> Iterator[tuple[Any, Callable[[int], object]]]:
    engine = sqlalchemy.create_engine(database.replace("mysql://", "mysql+pymysql://"))
    statement = sqlalchemy.text("INSERT INTO orders VALUES (:number)")
    with Session(engine) as session:
        yield session, lambda number: session.execute(statement, {"number": number})
    engine.dispose()


@contextmanager
def _engine(database: str) -> Iterator[tuple[Any, Callable[[int], object]]]:
    engine = sqlalchemy.create_engine(database.replace("mysql://", "mysql+pymysql://"))
    statement = sqlalchemy.text("INSERT INTO orders VALUES (:number)")
    with engine.connect() as connection:
        yield connection, lambda number: connection.execute(statement, {"number": number})
    engine.dispose()


@pytest.mark.parametrize("opened", [_pymysql, _session, _engine])
def test_a_task_is_published_by_the_commit_and_only_by_that(app: Celery, database: str, opened: Any) -> None:
    with opened(database) as (connection, insert):
        for number in range(6):
            insert(number)
            with in_transaction(connection):
                app.send_task("bill", (number,))
                app.send_task("mail", (100 + number,))
            if number % 2:
                connection.rollback()
            else:
                connection.commit()
        insert(7)
        with in_transaction(connection):
            app.send_task("bill", (7,))
        app.send_task("outside", (8,))  # at once, while the transaction is open
        connection.rollback()
    assert _orders(database) == [0, 2, 4]
    assert sorted(_received(app)) == [0, 2, 4, 8, 100, 102, 104]


def test_a_countdown_waits_from_the_commit_on(app: Celery, database: str) -> None:
    with _pymysql(database) as (connection, insert):
        insert(1)
        with in_transaction(connection):
            app.send_task("bill", (1,), countdown=3600)
            app.send_task("bill", (2,), countdown=0.1)
        connection.commit()
    assert _received(app) == [2]


def test_the_error_of_a_statement_reaches_the_caller_and_nothing_is_published(app: Celery, database: str) -> None:
    connection = connect(database)
    connection.close()
    with pytest.raises(pymysql.err.Error), in_transaction(connection):
        app.send_task("bill", (1,))
    app.send_task("bill", (2,))
    assert _received(app) == [2]


def test_blocks_nest_and_end(app: Celery, database: str) -> None:
    with _pymysql(database) as (outer, _), _pymysql(database) as (inner, _):
        with in_transaction(outer):
            app.send_task("bill", (1,))
            with in_transaction(inner):
                app.send_task("bill", (2,))
            app.send_task("bill", (3,))
        outer.commit()
        inner.rollback()
    assert sorted(_received(app)) == [1, 3]


def test_no_connection_is_an_error() -> None:
    with pytest.raises(TypeError, match="give the connection"), in_transaction(None):
        pass


_DJANGO = """
    import tests.celery.shop
    import django
    django.setup()
    from django.core.management import call_command
    from django.db import connection, transaction
    call_command("migrate", run_syncdb=True, verbosity=0)
    from emsworker.integrations.celery import in_transaction
    from tests.celery.shop.models import Order
    from tests.celery.shop.tasks import bill

    class Declined(Exception):
        pass

    for number in range(4):
        try:
            with transaction.atomic():
                Order.objects.create(number=number)
                with in_transaction(connection):
                    bill.delay(number)
                if number % 2:
                    raise Declined
        except Declined:
            pass
    with in_transaction(connection):
        bill.delay(10)  # outside of atomic() each statement commits
    print(list(Order.objects.values_list("number", flat=True)))
"""


def test_an_order_of_django_and_its_task_are_one(app: Celery, database: str) -> None:
    env = os.environ | {"PYTHONPATH": str(ROOT), "SHOP_DATABASE": database, "SHOP_BROKER": f"ems+{database}"}
    command = [sys.executable, "-c", textwrap.dedent(_DJANGO)]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[-2] == "[0, 2]"
    assert sorted(_received(app)) == [0, 2, 10]
