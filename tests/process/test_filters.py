"""Workers run only what their group's filter lets through, and do not start with another one."""

from emsworker import Filter
from emsworker.admin import Admin
from tests.process.stream import Stream


def test_a_worker_runs_what_matches_and_another_filter_keeps_it_from_starting(stream: Stream) -> None:
    for n in range(300):
        stream.send("wanted", [{"n": n}], tag="yes" if n % 3 else "no", headers={"region": "eu" if n % 2 else "us"})
    worker = stream.worker(topics=["wanted"], threads=2)
    expected = [n for n in range(300) if n % 3 and n % 2]
    stream.wait_ended(expected)
    stream.wait_settled()
    assert stream.record.numbers("start") == expected
    assert worker.stop() == 0
    Admin(stream.app).change_group("wanted", "wanted", filter=Filter(tags=["no"]))
    other = stream.start("worker", topics=["wanted"], app="tests.process.apps.actor:app")
    assert other.wait() == 2
    assert "'tag yes, header region=eu'" in other.text() and "has 'tag no'" in other.text()
    assert "ems groups change wanted wanted --tag=yes --header=region=eu" in other.text()
    assert "Traceback" not in other.text()


def test_what_a_filter_leaves_out_costs_few_claims_however_slow_the_rest_is(stream: Stream) -> None:
    for n in range(40):
        stream.send("wanted", [{"n": n, "do": "sleep", "s": 0.02}], tag="yes", headers={"region": "eu"})
        stream.send("wanted", [{"n": n}] * 99, tag="no")
    stream.worker(topics=["wanted"], processes=1, threads=1)
    stream.wait_ended(range(40))
    stream.wait_settled()
    assert stream.record.numbers("start") == list(range(40))
    assert stream.one("SELECT COUNT(*) FROM ems_claim") < 20, "of 4,000 offsets: 1, 8, 64, and then 500 a claim"
