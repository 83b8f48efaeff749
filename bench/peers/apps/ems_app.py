"""EMS, as in its quickstart; the addresses come from the environment."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from bench.peers.apps import tally
from emsworker import Ems

app = Ems("bench")


@app.task(name="noop", topic="bench")
def noop(number: int) -> None:
    tally.ran(number)


def send(number: int) -> None:
    noop.delay(number)


def fill(numbers: Sequence[int]) -> None:
    """Send from many threads, whose calls share commits."""
    with ThreadPoolExecutor(32) as pool:
        for _ in pool.map(send, numbers):
            pass


def send_apart(numbers: Sequence[int]) -> None:
    """Messages of a topic that no task runs: there is no call that sends many tasks."""
    app.send_many("events", [{"number": number} for number in numbers])


def close() -> None:
    """Close its connections."""
    app.close()
