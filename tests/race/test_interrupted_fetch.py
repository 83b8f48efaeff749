"""An exception from outside, as timeout libraries raise them, at every call in a fetch of messages."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from emsworker import Message
from emsworker.consume import claim_progress, claimer, claiming, flusher, in_hand, pull
from emsworker.store import groups
from emsworker.store.engine import session
from tests.support.interruptions import Cut, Timeout
from tests.support.streams import Stream

pytestmark = pytest.mark.own_process

FILES = (
    *(str(one.__file__) for one in (claim_progress, claimer, claiming, flusher, in_hand, pull, session)),
    str(Path(next(iter(groups.__path__))) / "claims.py"),
)
MOST_CALLS = 3000
EACH = 2


def take_all(fetch: Callable[[], list[Message]], wanted: set[str]) -> list[Message]:
    """Fetch until all that is wanted has come; what is in nobody's hand comes long before the group's timeout."""
    found: list[Message] = []
    while len(found) < len(wanted) and (messages := fetch()):
        found += messages
    return found


@pytest.mark.timeout(120)  # without its cure a lock stays taken
@pytest.mark.parametrize("way", ["fetch", "iterate"])
def test_an_interrupted_fetch_keeps_no_message(stream: Stream, way: str) -> None:
    app = stream.app()
    with app.consumer("t", "g", prefetch=EACH * 2, timeout=600) as consumer:

        def fetch() -> list[Message]:
            return consumer.fetch(EACH, wait=15) if way == "fetch" else [next(iter(consumer))]

        for number in range(MOST_CALLS):
            sent = {receipt.id for receipt in app.send_many("t", [number] * EACH)}
            with Cut(number, FILES) as cut:
                got: list[Message] = []
                with contextlib.suppress(Timeout):
                    got = fetch()
            found = got + take_all(lambda: consumer.fetch(EACH, wait=15), sent - {one.id for one in got})
            assert sorted(one.id for one in found) == sorted(sent), number
            assert all(one.attempt == 1 for one in found), number
            consumer.ack(*found)
            if number % 7 == 0:
                consumer.flush()
            if not cut.raised:
                break
        else:
            raise AssertionError("it takes more calls")
        consumer.flush()
    assert number > 50
    assert stream.rows("SELECT COUNT(*) FROM ems_attempt") == [(0,)]


def test_what_an_interrupted_thread_keeps_of_an_ended_claim_stops_no_other(stream: Stream) -> None:
    """An exception in the very end of a fetch leaves the write of a claim locked that the flusher just wants."""
    app = stream.app()
    with app.consumer("t", "g", timeout=600) as consumer:
        app.send_many("t", [1, 2])
        messages = consumer.fetch(2, wait=15)
        (pulled,) = consumer._in_hand.claims()
        pulled.sending.acquire()
        ended = [threading.Thread(target=consumer._flusher.write_all) for _ in range(2)]
        consumer.ack(*messages)
        for thread in ended:
            thread.start()
        pulled.progress.closed = True  # its end was written by this thread
        for thread in ended:
            thread.join(20)
        assert not any(thread.is_alive() for thread in ended)
        pulled.progress.closed = False
        pulled.end_sending()
