"""A Celery project as people write them: it knows nothing of its broker but the address."""

import json
import os
import signal
import time
from pathlib import Path

from celery import Celery

app = Celery("project", broker=os.environ["PROJECT_BROKER"], backend=os.environ["PROJECT_BACKEND"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
)
app.conf.broker_transport_options = json.loads(os.environ.get("PROJECT_OPTIONS", "{}"))


def note(*words: object) -> None:
    """Append a line to the project's record, in one write, so that lines of several processes don't mix."""
    line = " ".join(map(str, words)) + "\n"
    descriptor = os.open(Path(os.environ["PROJECT_RECORD"]), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


def take(seconds: float) -> None:
    """Spend the run time of a task: it is what a scenario loads its workers with, and nothing waits by it."""
    time.sleep(seconds)


@app.task(ignore_result=True)
def work(number: int, seconds: float = 0.0) -> None:
    """Take a while."""
    note("began", number, time.time())
    take(seconds)
    note("ended", number, time.time())


@app.task(ignore_result=True)
def wait(number: int) -> None:
    """Take half a second, and all but the first three as long as there is no file ``go``."""
    note("began", number, time.time())
    take(0.5)
    while number >= 3 and not Path(os.environ["PROJECT_RECORD"]).with_name("go").exists():
        take(0.02)
    note("ended", number, time.time())


@app.task(ignore_result=True, bind=True)
def die(self: object, number: int) -> None:
    """Kill the process that runs it, as a fault in a C library would."""
    note("began", number, time.time())
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(ignore_result=True, acks_on_failure_or_timeout=False)
def bill(number: int) -> None:
    """Fail, and so be rejected, while there is no rate."""
    rate = Path(os.environ["PROJECT_RECORD"]).with_name("rate")
    if not rate.exists():
        raise LookupError(f"no rate for order {number}")
    note("ended", number, time.time())


@app.task(ignore_result=True, acks_on_failure_or_timeout=False, time_limit=1)
def stall(number: int) -> None:
    """Run past its time limit, and so be returned to its queue."""
    note("began", number, time.time())
    take(600)


@app.task
def square(number: int) -> int:
    """A part of a chord."""
    take(0.2)
    return number * number


@app.task
def total(squares: list[int], chord: int) -> int:
    """The body of a chord."""
    note("body", chord, sum(squares))
    return sum(squares)


@app.task
def add(x: int, y: int) -> int:
    """The first task of Celery's documentation."""
    return x + y
