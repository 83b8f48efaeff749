"""An app whose handlers fail in known ways and send messages of their own.

An order: every 7th fails once, every 11th always, every 13th is rejected. What is well sends an invoice, and that a
mail.
"""

from emsworker import Ems, Filter, Message
from emsworker.core.errors import Reject
from emsworker.tasks.correlation import Correlation
from emsworker.tasks.task import BoundTask

app = Ems("shop", middleware=[Correlation()])


class BankAway(ConnectionError):
    """The bank cannot be reached."""


@app.task(name="order", topic="orders", group="sellers", bind=True, ladder="50ms", max_attempts=3)
def order(self: BoundTask, n: int) -> None:
    if n % 11 == 5:
        raise ValueError(f"no article {n}\nask the shop")
    if n % 13 == 6:
        raise Reject("not for us")
    if n % 7 == 3 and self.request.attempt == 1:
        raise BankAway("try again")
    invoice.delay(n)


@app.task(name="invoice", topic="invoices", group="clerks")
def invoice(n: int) -> None:
    app.send("mails", {"n": n})


@app.subscribe("orders", "audit")
def audit(message: Message) -> None:
    pass


@app.subscribe("orders", "export", filter=Filter(tags=["new"], headers={"region": "eu"}))
def export(message: Message) -> None:
    pass


@app.subscribe("mails", "post")
def post(message: Message) -> None:
    pass
