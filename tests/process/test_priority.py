"""Of what waits, a worker takes the higher priorities first, and starves none."""

import itertools
import time

from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.support.waiting import until

APP = "tests.process.apps.priority:app"
LOW = (range(5_000), range(5_000, 10_000))
CLAIM_S, LOOK_S, SLACK_S = 0.5, 0.2, 0.5


def test_a_high_message_starts_within_a_claim_though_10_000_low_ones_wait(stream: Stream) -> None:
    Admin(stream.app).create_topic("levels", priorities=10)
    for priority, numbers in enumerate(LOW):
        stream.send("levels", [{"n": n, "s": 0.02} for n in numbers], priority=priority)
    stream.worker(APP)
    until(lambda: len(stream.record.events("start")) > 20, 20, "low ones run")
    waits = []
    for number in range(10_000, 10_004):
        began = time.monotonic()
        stream.send("levels", [{"n": number, "s": 0.02}], priority=9)
        stream.wait_ended([number])
        waits.append(stream.record.events("start", n=number)[0]["at"] - began)
    print(f"a high message behind 10,000 low ones started after {', '.join(f'{wait:.2f}' for wait in waits)} s")
    assert max(waits) < CLAIM_S + LOOK_S + SLACK_S
    for priority, numbers in enumerate(LOW):
        ran = [one["n"] for one in stream.record.events("start", priority=priority)]
        assert ran == list(numbers[: len(ran)]), "in their order"
    assert 20 < len(stream.record.events("start", priority=1)) > len(stream.record.events("start", priority=0))


def test_low_messages_go_on_under_a_flood_of_high_ones(one_stream: Stream) -> None:
    stream = one_stream
    Admin(stream.app).create_topic("levels", priorities=2)
    stream.send("levels", [{"n": n, "s": 0.01} for n in range(20)], priority=0)
    numbers = itertools.count(1000)

    def flood() -> None:
        stream.send("levels", [{"n": next(numbers), "s": 0.01} for _ in range(100)], priority=9)

    def low_ones_are_done() -> bool:
        flood()
        return len(stream.record.events("end", priority=0)) == 20

    flood()  # before the worker, which would be through with the low ones in a moment
    stream.worker(APP, threads=2, settings={"claim_s": 0.02})
    until(low_ones_are_done, 30, "the low ones")
    high = len(stream.record.events("end", priority=9))
    last_low = max(one["at"] for one in stream.record.events("end", priority=0))
    before = [one for one in stream.record.events("end", priority=9) if one["at"] < last_low]
    print(f"20 low ones ended among {len(before)} high ones of {high}")
    assert len(before) > 50, "higher ones come first"
    assert stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") > len(before) + 100, (
        "the flood never ebbed"
    )
