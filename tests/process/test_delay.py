"""Delayed and expiring tasks through a real worker, whose beat relays them."""

from tests.process.stream import Stream
from tests.support.waiting import until


def test_delayed_messages_run_when_due_and_expired_ones_never(stream: Stream) -> None:
    stream.worker(topics=["acts"], groups=["a"])
    for number in range(5):
        stream.app.send("acts", {"n": number}, countdown=1 + number / 10)
    assert stream.one("SELECT COUNT(*) FROM ems_outbox") == 5
    due = {number: 1 + number / 10 for number in range(5)}
    stream.wait_ended(range(5))
    late = stream.rows(
        "SELECT m.body, TIMESTAMPDIFF(MICROSECOND, m.born_at, UTC_TIMESTAMP(6)) FROM ems_message m WHERE m.`offset` > 0 ORDER BY m.`offset`"
    )
    assert [row[0] for row in late] == [b'{"n":%d}' % number for number in due], "in the order of their times"
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_outbox") == 0, 5, "none is left")
