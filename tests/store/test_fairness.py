"""Fairness between publishers: one that sends as fast as it can keeps no other from sending, in its process or beside."""

import threading
from collections.abc import Callable

import pytest

from emsworker import Ems
from tests.support.machine import machine_s
from tests.support.streams import AppFactory, Stream
from tests.support.waiting import until

_FLOODS, _POLITE = 4, 20
_PATIENCE_S = 5.0  # for one send among all of a flood's; without competition it takes milliseconds


def _singles(app: Ems, stop: threading.Event) -> None:
    while not stop.is_set():
        app.send("t", "x" * 100, partition=0)


def _batches(app: Ems, stop: threading.Event) -> None:
    while not stop.is_set():
        app.send_many("t", ["x" * 1000] * 5000, partition=0)


@pytest.mark.parametrize("shared", [True, False], ids=["in one process' app", "each with its own connections"])
@pytest.mark.parametrize("flood", [_singles, _batches])
def test_a_polite_publisher_gets_its_turn(
    stream: Stream, new_app: AppFactory, flood: Callable[[Ems, threading.Event], None], shared: bool
) -> None:
    stream.topic("t", partitions=1)
    polite = new_app()
    stop, longest = threading.Event(), 0.0
    floods = [
        threading.Thread(target=flood, args=(polite if shared else new_app(), stop), name=f"flood-{number}")
        for number in range(_FLOODS)
    ]
    for one in floods:
        one.start()
    try:
        until(lambda: stream.value("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") > 100, 30, "they flood")
        for number in range(_POLITE):
            began = machine_s()
            polite.send("t", {"polite": number}, partition=0)
            longest = max(longest, machine_s() - began)
        assert all(one.is_alive() for one in floods), "it did not wait for the end of a flood"
    finally:
        stop.set()
        for one in floods:
            one.join(60)
    assert longest < _PATIENCE_S
    own = stream.rows(
        "SELECT CONVERT(body USING utf8mb4) FROM ems_message WHERE body LIKE %s ORDER BY `offset`", '{"polite%'
    )
    assert own == [(f'{{"polite":{number}}}',) for number in range(_POLITE)], "in the order in which they were sent"
