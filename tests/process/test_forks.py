"""Handlers that fork: the child sends for itself, and leaves its parent's message, session and signals alone."""

from collections import Counter

from tests.process.stream import Stream
from tests.support.waiting import until

_APP = "tests.process.apps.forking:app"
FORKS = 20


def _call(stream: Stream, task: str, n: int, *args: object) -> None:
    stream.app.publisher.send("forks", [[n, *args], {}], headers={"ems-task": task})


def test_children_of_handlers_send_and_end(stream: Stream) -> None:
    for n in range(FORKS):
        _call(stream, "fork", n)
    stream.send("tx", [{"n": n} for n in range(100, 105)])
    worker = stream.worker(_APP, threads=4)
    numbers = [*range(FORKS), *range(100, 105)]
    stream.wait_ended(numbers, 60)
    stream.wait_settled(30)
    ends = [(one["n"], one["code"]) for one in stream.record.events("end") if one["code"] != 0]
    assert ends == [], stream.logs()
    sent = "SELECT m.body, COUNT(*) FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = 'sent' GROUP BY 1"
    until(lambda: {count for _, count in stream.rows(sent)} == {3}, 10, "each has sent three")
    assert len(stream.rows(sent)) == len(numbers)
    assert Counter(n for (n,) in stream.rows("SELECT n FROM effect")) == Counter(range(100, 105))
    assert stream.rows("SELECT outcome FROM ems_attempt WHERE outcome <> 'done'") == []
    assert worker.stop() == 0


def test_a_child_that_is_told_to_end_ends_and_its_worker_goes_on(stream: Stream) -> None:
    _call(stream, "terminate", 1)
    worker = stream.worker(_APP)
    stream.wait_ended([1], 30)
    assert stream.record.numbers("end", code=-15) == [1]
    _call(stream, "fork", 2)
    stream.wait_ended([2], 30)
    assert worker.stop() == 0


def test_a_child_that_comes_back_from_its_handler_ends_there(stream: Stream) -> None:
    for n, how in enumerate(("exit", "raise", "return")):
        _call(stream, "return", n, how)
    worker = stream.worker(_APP)
    stream.wait_ended([0, 1, 2], 30)
    stream.wait_settled()
    assert [stream.record.numbers("end", code=code) for code in (0, 1)] == [[0], [1, 2]]
    assert Counter(stream.record.numbers("end")) == Counter([0, 1, 2]), "each once"
    assert stream.rows("SELECT outcome FROM ems_attempt WHERE outcome <> 'done'") == []
    assert "it ends here" in stream.logs()
    assert worker.stop() == 0
