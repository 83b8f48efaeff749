"""A worker meets every error of a server in a cluster, and one that nobody knows, wherever it calls the server."""

import pytest

from tests.process.stream import Stream
from tests.support.proxy import Cut, Proxy, Refusal, proxied
from tests.support.refusals import ALL, AWAY, CONFLICTS, UNHEARD_OF
from tests.support.waiting import until

PLACES = {
    "look": b"(SELECT 0, g.id",
    "claim": b"INSERT INTO ems_claim",
    "ack": b"UPDATE ems_claim SET acked_to",
    "lease": b"UPDATE ems_client",
    "beat": b"UPDATE ems_leader",
    "relay": b"ems_outbox p FORCE INDEX (uid)",
    "handler": b"INSERT INTO effect",
    "commit": b"RELEASE SAVEPOINT ems_transaction",
}


# A conflict is never committed. A look changes nothing, and a handler's statement commits nothing.
UNKNOWN = [(name, refusal) for name in PLACES if name not in ("look", "handler") for refusal in (*AWAY, *UNHEARD_OF)]


def _hit(stream: Stream, proxy: Proxy, marker: bytes, cut: Cut, refusal: Refusal, n: int) -> None:
    """Let message ``n`` meet the error; one that has met the last and waits to run alone would be charged for another."""
    until(lambda: stream.one("SELECT COUNT(*) FROM effect") == n - 1, 30, f"each has its effect; {stream.logs()}")
    proxy.arm(marker, cut, refusal)
    stream.send("tx", [{"n": n}])
    stream.send("acts", [{"n": n}], countdown=0.01)
    until(lambda: not proxy.armed, 30, f"{marker!r} meets {refusal}; {stream.logs()}")


@pytest.mark.slow
def test_no_error_of_the_server_ends_a_worker_or_is_charged(one_stream: Stream) -> None:
    stream = one_stream
    with proxied(stream.url) as (proxy, url):
        worker = stream.start(
            "worker",
            {"url": url},
            app="tests.process.apps.actor:app",
            topics=["tx", "acts"],
            groups=["tx", "a"],
            threads=2,
        )
        worker.wait_ready()
        children, n = worker.children(), 0
        for name, marker in PLACES.items():
            for refusal in ALL:
                if name == "handler" and refusal not in (*CONFLICTS, *AWAY):
                    continue  # an unknown error of its own statement is the handler's
                n += 1
                _hit(stream, proxy, marker, Cut.BEFORE, refusal, n)
        for name, refusal in UNKNOWN:  # the server does it, and says this instead
            n += 1
            _hit(stream, proxy, PLACES[name], Cut.AFTER, refusal, n)
        stream.wait_settled(60)
        until(lambda: stream.one("SELECT COUNT(*) FROM effect") == n, 30, f"each has its effect; {stream.logs()}")
        assert stream.one("SELECT COUNT(DISTINCT n) FROM effect") == n, "once"
        assert set(stream.record.numbers("end")) == set(range(1, n + 1))
        charged = [one for one in stream.record.events("start") if one["attempt"] != 1]
        assert not charged, f"no attempt is charged; {stream.logs()}"
        assert stream.rows("SELECT * FROM ems_attempt") == stream.rows("SELECT * FROM ems_dead") == []
        assert worker.children() == children, "no process has ended"
        assert "died" not in worker.text() and "Traceback" not in worker.text(), worker.text()[-4000:]
        assert worker.stop() == 0
