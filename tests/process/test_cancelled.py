"""Cancelled messages and retries without a body, through a real worker."""

from tests.process.stream import Stream
from tests.support.waiting import until


def test_a_worker_skips_what_is_cancelled_and_drops_what_has_no_body(one_stream: Stream) -> None:
    stream = one_stream
    receipts = stream.app.send_many("acts", [{"n": n} for n in range(6)])
    assert all(stream.app.cancel(receipt) for receipt in receipts[1:4])
    stream.worker(settings={"ladder": "2s"}, topics=["acts"], groups=["a"])
    stream.wait_ended([0, 4, 5])
    failing = stream.app.send("acts", {"n": 6, "do": "fail"})
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_retry WHERE claim_id IS NULL"), 20, "it waits for a retry")
    stream.run("DELETE FROM ems_message WHERE uid = %s", bytes.fromhex(failing.id.replace("-", "")))
    stream.wait_settled()
    stream.app.send("acts", {"n": 7})
    stream.wait_ended([7])
    assert set(stream.record.numbers()) & {1, 2, 3} == set()
