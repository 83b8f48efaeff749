"""Mistakes that a type checker finds: one on each line that ends with "mistake", and no other."""

from emsworker import BoundTask, Ems, Message, Transaction
from emsworker.flows import Flow, FlowHandle, group

app = Ems("shop")


@app.task
def add(x: int, y: int = 0) -> int:
    return x + y


@app.task(result=True)
def name_of(number: int) -> str:
    return str(number)


@app.task(bind=True)
def retried(self: BoundTask, address: str) -> float:
    return self.request.time_left


@app.task(transactional=True)
def book(transaction: Transaction, account: str) -> None: ...


@app.task
async def ask(number: int) -> str:
    return str(number)


add("2")  # mistake
add.delay("2")  # mistake
add.delay(1, 2, 3)  # mistake
add.delay()  # mistake
add.delay(1, z=3)  # mistake
retried.delay()  # mistake
retried.delay(7)  # mistake
book.delay(7)  # mistake
text: str = ask(3)  # mistake
number: int = app.result(name_of.delay(1)).get()  # mistake
add.using(kee="a")  # mistake
add.using(countdown="5m")  # mistake
add.using(key="a").delay("2")  # mistake
add.apply_async((1,), task_idd="x")  # mistake
app.send("orders", 1, kee="a")  # mistake
app.send("orders", 1, partition="a")  # mistake
app.send_task("far.away", [1], kee="a")  # mistake


@app.task(bind=True)  # mistake
def bound_to_something_else(self: int) -> None: ...


@app.task(transactional=True)  # mistake
def without_a_transaction() -> None: ...


@app.task(max_attemps=3)  # mistake
def with_a_wrong_option() -> None: ...


@app.task(on_error="explode")  # mistake
def with_a_wrong_value() -> None: ...


@app.subscribe("orders", group="billing")  # mistake
def with_two(transaction: Transaction, message: Message) -> None: ...


@app.subscribe("orders", group="ledger", batch=10)  # mistake
def with_one(message: Message) -> None: ...


@app.flow
def checkout(flow: Flow, customer: str) -> int:
    flow.call(add.s("2"))  # mistake
    flow.call(add.s())  # mistake
    number: int = flow.call(add.s(1) | name_of.s())  # mistake
    return number


add.si("2")  # mistake
handle: FlowHandle[int] = (add.s(1) | name_of.s()).delay()  # mistake
both: list[int] = group(name_of.s(1)).delay().get()  # mistake


async def coroutines() -> None:
    await add.adelay("2")  # mistake
    await app.asend("orders", 1, kee="a")  # mistake
    number: str = await app.result(add.delay(1)).aget()  # mistake
    print(number)
