"""Retention beside a running worker: bounded tables under load, and nothing lost."""

from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.support.waiting import until

_MESSAGES = 12_000


def test_a10_a_topic_that_is_trimmed_when_done_stays_small(stream: Stream) -> None:
    admin = Admin(stream.app)
    admin.create_topic("acts", trim_done=True)
    admin.create_group("acts", "a")
    stream.worker(topics=["acts"], groups=["a"], settings={"beat_s": 0.1})
    for first in range(0, _MESSAGES, 1000):
        stream.send("acts", [{"n": n} for n in range(first, first + 1000)])
        until(lambda: stream.one("SELECT COUNT(*) FROM ems_message") <= 3000, 30, "trimming keeps up")
    stream.wait_ended(range(_MESSAGES), 60, group="a")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_message") == 0, 20, "everything is trimmed")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_claim") == 0, 20, "the log, too")
    assert stream.rows("SELECT floor, trimmed FROM ems_partition") == [(_MESSAGES + 1, _MESSAGES + 1)]
    assert stream.one("SELECT COUNT(*) FROM ems_skip") == 0
