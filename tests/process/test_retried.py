"""Of every attempt that is written down it is known how long it ran, also of a retry that ended well."""

from tests.process.stream import Stream
from tests.support.waiting import until

_TOPICS = ("plain", "batch", "transactional", "coroutine", "by_key")


def test_a_retry_that_ends_well_tells_how_long_it_ran(stream: Stream) -> None:
    for topic in _TOPICS:
        stream.send(topic, [{"s": 0.2}])
    stream.send("coroutine", [{"s": 1.0}])
    worker = stream.worker("tests.process.apps.retried:app", topics=list(_TOPICS), settings={"ladder": "10ms"})
    look = (
        "SELECT t.name, a.`offset`, a.ran_ms FROM ems_attempt a JOIN ems_group g ON g.id = a.group_id "
        "JOIN ems_topic t ON t.id = g.topic_id WHERE a.attempt = 2 AND a.outcome = 'done' ORDER BY 1, 2"
    )
    until(lambda: len(stream.rows(look)) == 6, 20, "all have ended")
    ran = {(topic, offset): ms for topic, offset, ms in stream.rows(look)}
    assert set(ran) == {(topic, 1) for topic in _TOPICS} | {("coroutine", 2)}
    assert ran.pop(("coroutine", 2)) >= 1000, "coroutines have run together, each for itself"
    assert all(200 <= ms < 1000 for ms in ran.values()), ran
    first = stream.rows("SELECT MAX(ran_ms) FROM ems_attempt WHERE attempt = 1")[0][0]
    assert first < 200, "the time until the retry is none of its own"
    assert worker.stop() == 0
