"""An app with something of each kind, to be run with the privileges of a worker alone."""

import time

from emsworker import Ems, Message
from emsworker.publish.transaction import Transaction
from emsworker.tasks.task import Task
from tests.process.record import note

app = Ems("roles")


@app.subscribe("plain", "plain", ladder="100ms", max_attempts=2)
def plain(message: Message) -> None:
    if message.body.get("fail", 0) >= message.attempt:
        raise RuntimeError("asked to fail")
    note("end", n=message.body["n"], group="plain")


@app.subscribe("ordered", "keyed", order="key", ladder="100ms", max_attempts=3)
def keyed(message: Message) -> None:
    if message.body.get("fail", 0) >= message.attempt:
        raise RuntimeError("asked to fail")
    note("end", n=message.body["n"], group="keyed")


@app.subscribe("ordered", "serial", order="partition", ladder="100ms", max_attempts=3)
def serial(message: Message) -> None:
    if message.body.get("fail", 0) >= message.attempt:
        raise RuntimeError("asked to fail")
    note("end", n=message.body["n"], group="serial")


@app.task(name="limited", topic="limited", group="limited", rate_limit="200/s", max_running=1, result=True, bind=True)
def limited(self: Task, n: int) -> int:
    self.request.report_progress(0.5, "half of it")
    time.sleep(0.05)
    return n + 1


@app.subscribe("bought", "bought", transactional=True)
def bought(tx: Transaction, message: Message) -> None:
    tx.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (message.body["n"],))
    app.send("plain", {"n": message.body["n"]}, transaction=tx)


@app.subscribe("news", broadcast=True, name="cache")
def news(message: Message) -> None:
    note("heard", n=message.body["n"])


@app.periodic(every=1.0)
@app.task(name="tick", topic="ticks", group="ticks")
def tick() -> None:
    with app.once("first tick") as first:
        note("tick", first=bool(first))
