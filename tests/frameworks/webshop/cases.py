"""The project's own tests: `manage.py test webshop.cases`."""

import asyncio
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, ClassVar
from unittest.mock import patch

from django.core.management import call_command
from django.core.management.base import CommandError, SystemCheckError
from django.db import OperationalError, connection, connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone
from webshop.models import Order
from webshop.tasks import bill, count, fail, late, sleep

from emsworker.core.errors import SoftTimeLimitExceeded, WrongArguments
from emsworker.django import enqueue_many, get_app
from emsworker.integrations.django.apps import check_tables
from emsworker.integrations.django.framework import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
)


def _rows(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _sent() -> int:
    """How many calls there are, delayed or not, as this connection sees them."""
    return sum(
        number
        for (number,) in _rows(
            "SELECT COUNT(*) FROM ems_outbox UNION ALL SELECT COUNT(*) FROM ems_message WHERE `offset` > 0"
        )
    )


class InATestCase(TestCase):
    """Two tests, of which neither sees what the other has enqueued."""

    def test_a_call_is_a_row_of_the_test_s_transaction(self) -> None:
        self.assertEqual(_sent(), 0)
        told = []
        task_enqueued.connect(
            lambda sender, task_result, **_: told.append(task_result.id), weak=False, dispatch_uid="t"
        )
        result = bill.enqueue(17)
        task_enqueued.disconnect(dispatch_uid="t")
        self.assertEqual((_sent(), result.status, told), (1, TaskResultStatus.READY, [result.id]))
        with self.assertRaises(TaskResultDoesNotExist):  # nobody else sees it
            bill.get_result(result.id)

    def test_many_calls_are_one_send(self) -> None:
        told = []
        task_enqueued.connect(
            lambda sender, task_result, **_: told.append(task_result.id), weak=False, dispatch_uid="t"
        )
        results = enqueue_many(bill, [*range(500), (500,), {"order_id": 501}])
        task_enqueued.disconnect(dispatch_uid="t")
        self.assertEqual((_sent(), told), (502, [one.id for one in results]))
        self.assertEqual([(one.args, one.kwargs) for one in results[-2:]], [([500], {}), ([], {"order_id": 501})])
        with self.assertRaises(WrongArguments):
            enqueue_many(bill, [(1,), (1, 2, 3)])
        with self.assertRaises(WrongArguments):
            enqueue_many(bill, "many")
        self.assertEqual(enqueue_many(bill, []), [])
        self.assertEqual(_sent(), 502)
        self.assertEqual(get_app().broker.topic("default").keeps, "1d after done")

    def test_savepoints_delays_priorities_and_arguments(self) -> None:
        self.assertEqual(_sent(), 0)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            bill.enqueue(1)
            raise ZeroDivisionError
        self.assertEqual(_sent(), 0)
        later = timezone.now() + timedelta(hours=1)
        bill.using(run_after=later, priority=50).enqueue(order_id=1)
        late.enqueue(1)
        bill.enqueue(1)
        ((due,), _, _) = rows = _rows("SELECT due_at FROM ems_outbox ORDER BY level DESC")
        self.assertLess(abs(due.replace(tzinfo=later.tzinfo) - later), timedelta(seconds=1), rows)
        levels = [level for (level,) in _rows("SELECT level FROM ems_outbox ORDER BY level")]
        self.assertEqual(levels, [0, 4, 7])
        for wrong, arguments in ((WrongArguments, ()), (WrongArguments, (1, 2)), (TypeError, (later,))):
            with self.assertRaises(wrong):
                bill.enqueue(*arguments)
        self.assertEqual(_sent(), 3)


class InMemory(TestCase):
    """Tasks that run in the test, in its transaction, and the signals of their ends."""

    def test_the_end_of_a_call_is_told(self) -> None:
        ended: list[tuple[str, Any]] = []

        def note(sender: type, task_result: Any, **_: Any) -> None:
            ended.append((task_result.task.name, task_result.status))

        order = Order.objects.create(amount=7)
        task_finished.connect(note)
        with get_app().test() as stream:
            paid = bill.enqueue(order.id)
            late.enqueue(order.id)
            fail.enqueue(why="it must")
            stream.run()
            self.assertEqual(get_app().result(paid.id).get(), {"amount": 7})
        task_finished.disconnect(note)
        good, bad = TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED
        self.assertEqual(sorted(ended), [("bill", good), ("fail", bad), ("late", good)])
        order.refresh_from_db()
        self.assertEqual((order.billed, _sent()), (1, 0))


class WithAWorker(TransactionTestCase):
    """What is committed is run."""

    def setUp(self) -> None:
        command = [sys.executable, "-m", "django", "ems_worker", "-p", "1", "-t", "1", "--log-level", "warning"]
        self._worker = subprocess.Popen(command, start_new_session=True)

    def tearDown(self) -> None:
        self._worker.send_signal(signal.SIGTERM)
        self.assertEqual(self._worker.wait(60), 0)

    def _ended(self, result: Any) -> Any:
        deadline = time.monotonic() + 120
        while not result.is_finished:
            self.assertIsNone(self._worker.poll())
            self.assertLess(time.monotonic(), deadline, f"{result} is not finished")
            time.sleep(0.02)
            result.refresh()
        return result

    def test_calls_are_run_once_they_are_committed(self) -> None:
        before = _sent()
        transaction.set_autocommit(False)
        bill.enqueue(1)
        transaction.rollback()
        transaction.set_autocommit(True)
        with self.assertRaises(ValueError):
            self.client.get("/order/5000")
        self.assertEqual((_sent(), Order.objects.count()), (before, 0))
        sent = self.client.get("/order/250").json()["id"]
        with ThreadPoolExecutor(1) as pool:  # a thread that has enqueued nothing
            self.assertIs(pool.submit(get_app).result(), get_app())
            done = self._ended(pool.submit(bill.get_result, sent).result())
        self.assertEqual((done.return_value, done.attempts), ({"amount": 250}, 1))
        self.assertLess(done.enqueued_at, done.finished_at)
        self.assertEqual(Order.objects.get().billed, 1)

        # Every connection of the worker is cut, as by a restart of the server: the next call has no stale one.
        killed = 0
        for (thread,) in _rows(
            "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
        ):
            try:
                _rows(f"KILL {thread}")
            except OperationalError as error:
                self.assertEqual(error.args[0], 1094)  # it has ended meanwhile
            else:
                killed += 1
        self.assertGreater(killed, 1)
        order = Order.objects.get()
        self.assertEqual(self._ended(bill.enqueue(order.id)).attempts, 1)

        retried = self._ended(late.enqueue(order.id))
        self.assertEqual((retried.return_value, retried.attempts), (2, 2))
        (error,) = retried.errors
        self.assertEqual(error.exception_class_path, "webshop.models.Order.DoesNotExist")
        cut = self._ended(sleep.enqueue())  # in the middle of a query: its connection is not used again
        self.assertEqual(cut.errors[0].exception_class, SoftTimeLimitExceeded)
        failed = self._ended(fail.enqueue(why="it must"))
        self.assertEqual((failed.status, failed.errors[0].exception_class), (TaskResultStatus.FAILED, LookupError))
        self.assertIn("it must", failed.errors[0].traceback)
        self.assertEqual(self._ended(asyncio.run(count.aenqueue())).return_value, 1)

        self.assertEqual(self._ended(bill.enqueue(order.id)).attempts, 1)

        delayed = bill.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(order.id)
        kept = bill.get_result(delayed.id)
        self.assertEqual((kept.status, kept.args, kept.attempts), (TaskResultStatus.READY, [order.id], 0))
        with self.assertRaises(TaskResultDoesNotExist):
            bill.get_result("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70")
        listed = subprocess.run(
            [sys.executable, "-m", "django", "ems", "groups", "list"], capture_output=True, text=True, check=True
        )
        self.assertIn("workers", listed.stdout)


class Checked(SimpleTestCase):
    """What `manage.py check` says of wrong settings."""

    wrong: ClassVar[dict[str, Any]] = {
        "default": {
            "BACKEND": "emsworker.django.EmsBackend",
            "QUEUES": ["no blanks"],
            "OPTIONS": {"max_attemps": 3, "ack_interval_s": -1},
        }
    }

    def test_every_mistake_is_named(self) -> None:
        with override_settings(TASKS=self.wrong), self.assertRaises(SystemCheckError) as found:
            call_command("check")
        text = str(found.exception)
        for part in ("max_attemps", "did you mean 'max_attempts'", "ack_interval_s", "no blanks"):
            self.assertIn(part, text)
        get_app().follow()
        self.assertEqual(get_app().settings.max_attempts, 2)

    def test_the_fix_for_tables_of_another_version_fits(self) -> None:
        latest = "emsworker.store.engine.schema.latest_version"
        with patch(latest, return_value=0):
            (newer,) = check_tables(databases=["default"])
            self.assertIn("Install", newer.hint)
        with patch(latest, return_value=9999):
            (older,) = check_tables(databases=["default"])
            self.assertEqual(older.hint, "Run `manage.py ems_migrate`.")
            self.assertIn("run `manage.py ems_migrate`", older.msg)
            with patch("sys.argv", ["manage.py", "migrate"]):
                self.assertEqual(list(check_tables(databases=["default"])), [])
        self.assertEqual(list(check_tables(databases=["default"])), [])

    def test_a_wrong_password_is_looked_for_in_the_settings_of_django(self) -> None:
        with patch.dict(connections.settings["default"], PASSWORD="wrong"), self.assertRaises(CommandError) as found:
            call_command("ems_migrate")
        self.assertIn("DATABASES['default']", str(found.exception))
        self.assertNotIn("EMS_URL", str(found.exception))
