"""Arguments and results by annotations, through real servers, workers and the command line."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest

from emsworker import TaskFailed
from emsworker.core.ids import parse_uid
from tests.process.apps.typed import ORDER, Receipt, app, bill, book, fragile
from tests.process.stream import Stream
from tests.support.commands import Ems as Command
from tests.support.waiting import until

APP = "tests.process.apps.typed:app"
BILLED = Receipt(order=ORDER.id, total=Decimal("3.30"), due=ORDER.at + timedelta(days=1))


@pytest.fixture
def typed(stream: Stream) -> Iterator[Stream]:
    """A stream with a worker of that app, which this process sends for."""
    before = app.settings.url
    app.reconfigure(url=stream.url)
    stream.worker(APP)
    yield stream
    app.close()
    app.reconfigure(url=before)


def test_objects_go_in_and_come_out(typed: Stream) -> None:
    def in_transaction() -> object:
        with app.transaction() as transaction:
            return bill.using(transaction=transaction).delay(ORDER)

    receipts = [
        bill.delay(ORDER, timedelta(hours=1)),
        *bill.delay_many([(ORDER,), {"order": ORDER}]),
        asyncio.run(bill.adelay(order=ORDER)),
        bill.s(ORDER).delay(),
        in_transaction(),
        bill.apply_async((ORDER,), countdown=0.1),
        book.delay(ORDER),
    ]
    hour = BILLED.model_copy(update={"due": ORDER.at + timedelta(hours=1)})
    assert app.results(receipts).get(30) == [hour, *[BILLED] * 6, Decimal("3.30")], typed.logs()  # type: ignore[arg-type]
    ticks = until(lambda: typed.record.events("tick"), 15, typed.logs())
    assert all(event["same"] for event in ticks), "a schedule's arguments are typed, too"


def test_a_call_from_the_command_line_is_built_or_dead_at_once(typed: Stream, tmp_path: Path) -> None:
    body = ORDER.model_dump(mode="json")

    def send(*args: object) -> str:
        ems = Command({"EMS_URL": typed.url}, tmp_path)
        return str(ems.ok("send", "default", json.dumps([*args]), "--task", "bill", "--json").json["id"])

    assert bill.result(send(body)).get(30) == BILLED
    wrong = send({**body, "at": "never"})
    with pytest.raises(
        TaskFailed, match=r"cannot be built: order.at = 'never' does not fit .*\.Order: Input should be"
    ):
        bill.result(wrong).get(30)
    reason, attempts = typed.rows("SELECT reason, attempts FROM ems_dead WHERE uid = %s", parse_uid(wrong))[0]
    assert reason.startswith("the arguments of task 'bill' cannot be built: order.at = 'never'") and attempts == 1


def test_a_dead_letter_that_is_requeued_gets_its_objects(typed: Stream, tmp_path: Path) -> None:
    call = fragile.delay(ORDER)
    with pytest.raises(TaskFailed, match="not yet"):
        fragile.result(call).get(30)
    Command({"EMS_URL": typed.url}, tmp_path).ok("dead", "requeue", call.id, "--yes")
    until(lambda: fragile.result(call).status == "done", 30, typed.logs())
    assert fragile.result(call.id).get() == ORDER
