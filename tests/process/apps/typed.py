"""Tasks whose arguments and results are built by their annotations."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from uuid import UUID

from pydantic import BaseModel

from emsworker import Ems, Reject, Transaction
from tests.process.record import Record, note

app = Ems("typed")


class Size(Enum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Line:
    sku: str
    price: Decimal


class Order(BaseModel):
    id: UUID
    at: datetime
    lines: list[Line]
    sizes: set[Size] = set()


class Receipt(BaseModel):
    order: UUID
    total: Decimal
    due: datetime


ORDER = Order(
    id=UUID("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"),
    at=datetime(2026, 3, 1, 12),
    lines=[Line("a", Decimal("1.10")), Line("b", Decimal("2.20"))],
    sizes={Size.LARGE},
)


@app.task(name="bill", result=True, max_attempts=2, ladder="10ms")
def bill(order: Order, within: timedelta = timedelta(days=1)) -> Receipt:
    total = sum((line.price for line in order.lines), Decimal(0))
    return Receipt(order=order.id, total=total, due=order.at + within)


@app.task(name="book", transactional=True, result=True)
def book(transaction: Transaction, order: Order) -> Decimal:
    return sum((line.price for line in order.lines), Decimal(0))


@app.task(name="fragile", result=True)
def fragile(order: Order) -> Order:
    is_first = not Record(Path(os.environ["EMS_TEST_RECORD"])).events("fragile")
    note("fragile")
    if is_first:
        raise Reject("not yet")
    return order


@app.periodic(every=1.0, kwargs={"order": ORDER})
@app.task(name="tick")
def tick(order: Order) -> None:
    note("tick", same=order == ORDER)
