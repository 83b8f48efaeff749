"""Retention beside a running worker: bounded tables under load, and nothing lost."""

import os
import time

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.support.waiting import until

_MESSAGES = 12_000
_SECONDS = 60.0 if os.environ.get("EMS_TEST_LONG") else 6.0
_BEHIND_S = 3.0


def test_a_topic_that_is_trimmed_when_done_stays_small(stream: Stream) -> None:
    admin = Admin(stream.app)
    admin.create_topic("acts", keep_done_s=0)
    admin.create_group("acts", "a")
    stream.worker(topics=["acts"], groups=["a"], settings={"beat_s": 0.1})
    for first in range(0, _MESSAGES, 1000):
        stream.send("acts", [{"n": n} for n in range(first, first + 1000)])
        until(
            lambda: stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") <= 3000, 30, "trimming keeps up"
        )
    stream.wait_ended(range(_MESSAGES), 60, group="a")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0, 20, "everything is trimmed")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_claim") == 0, 20, "the log, too")
    assert stream.rows("SELECT log_start, trimmed FROM ems_partition") == [(_MESSAGES + 1, _MESSAGES + 1)]
    assert stream.one("SELECT COUNT(*) FROM ems_skip") == 0


def test_a_new_app_s_table_stays_flat(stream: Stream) -> None:
    """Nobody has said anything but for how long; two groups run the calls, and one of them in order."""
    from tests.process.apps import shared

    app = Ems("sender", url=stream.urls["sender"], keep_done_s=1)
    shared.mail.app = shared.bill.app = app
    app.registry.add_task(shared.mail, None)
    app.registry.add_task(shared.bill, "key")
    sent = []
    for first in range(0, 3000, 1000):
        numbers = range(first, first + 1000)
        shared.mail.delay_many([(n,) for n in numbers])
        shared.bill.delay_many([(n,) for n in numbers], key=str(first))
        if not sent:
            assert Admin(stream.app).topic("mixed").keeps == "1s after done"
            stream.worker("tests.process.apps.shared:app", settings={"beat_s": 0.1})
        sent += numbers
        stream.wait_ended(sent, 60, group="bills")
        until(lambda: stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") <= 2000, 30, "it stays flat")
    stream.wait_ended(sent, 60, group="mail")
    stream.wait_settled()
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 0, 20, "everything is trimmed")
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_claim") == 0, 20, "the log, too")
    assert stream.record.numbers(group="mail") == stream.record.numbers(group="bills") == sent
    app.close()


@pytest.mark.alone
def test_rows_are_deleted_as_fast_as_they_are_published(one_stream: Stream) -> None:
    """A producer at full speed, a worker that keeps up, and never more rows than a few seconds of publishing."""
    stream = one_stream
    Admin(stream.app).create_topic("quick", keep_done_s=0)
    stream.worker("tests.process.apps.quick:app", processes=1, threads=4)
    kept, sent = [], 0
    began = time.monotonic()
    while time.monotonic() < began + _SECONDS:
        stream.send("quick", [{"n": n} for n in range(500)])
        sent += 500
        kept.append(sent + 1 - stream.one("SELECT trimmed FROM ems_partition"))
    rate = sent / (time.monotonic() - began)
    ended = time.monotonic()
    until(lambda: stream.one("SELECT trimmed FROM ems_partition") == sent + 1, 30, "everything is trimmed")
    rest_s = time.monotonic() - ended
    print(f"{sent} at {rate:.0f}/s; at most {max(kept)} rows, at the end {kept[-1]}, gone {rest_s:.2f} s later")
    assert max(kept) < _BEHIND_S * rate
    assert rest_s < _BEHIND_S
    assert stream.one("SELECT COUNT(*) FROM ems_skip") == 0
