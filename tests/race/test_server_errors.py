"""Every error of a server in a cluster, and one that nobody knows, at a send, a claim, a lease and an acknowledgement."""

from urllib.parse import urlsplit

import pytest

from emsworker.core.errors import Conflict, ConnectionLost, StatementRefused
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from tests.support.proxy import Cut, Refusal, proxied
from tests.support.refusals import ALL, AWAY, CONFLICTS, UNHEARD_OF, name_of
from tests.support.streams import AppFactory, Stream
from tests.support.waiting import until

INSERT = b"INSERT INTO ems_message"


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
def test_a_send_that_the_server_refuses_is_confirmed_later_and_is_one_row(
    stream: Stream, new_app: AppFactory, cut: Cut
) -> None:
    with proxied(stream.url) as (proxy, url):
        app = new_app(url=url)
        app.send("t", -1)
        for number, refusal in enumerate(ALL):
            if cut is Cut.AFTER and refusal in CONFLICTS:
                continue  # a conflict is never committed
            proxy.arm(INSERT, cut, refusal)
            receipt = app.send("t", number)
            assert not proxy.armed and receipt.created, refusal
        bodies = [
            int(row[0]) for row in stream.rows("SELECT body FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
        ]
        assert bodies == [-1, *(n for n, one in enumerate(ALL) if cut is Cut.BEFORE or one not in CONFLICTS)]
        app.close()


@pytest.mark.parametrize("refusal", ALL, ids=name_of)
def test_a_transaction_of_a_program_is_not_committed_in_half(
    stream: Stream, new_app: AppFactory, refusal: Refusal
) -> None:
    stream.rows("CREATE TABLE orders (n INT PRIMARY KEY) ENGINE=InnoDB")
    with proxied(stream.url) as (proxy, url):
        app = new_app(url=url, publish_timeout_s=5)
        app.send("t", 0)
        proxy.arm(b"RELEASE SAVEPOINT", Cut.BEFORE, refusal)
        with (
            pytest.raises(Exception, match=r"transaction|rolled back|MySQL") as caught,
            app.transaction() as transaction,
        ):
            transaction.execute("INSERT INTO orders VALUES (1)")
            app.send("t", 1, transaction=transaction)
        assert "pymysql" not in type(caught.value).__module__, caught.value
        with app.transaction() as transaction:
            transaction.execute("INSERT INTO orders VALUES (1)")
            app.send("t", 1, transaction=transaction)
        assert stream.value("SELECT COUNT(*) FROM orders") == 1
        app.close()


@pytest.mark.parametrize("refusal", ALL, ids=name_of)
def test_a_consumer_goes_on_after_any_refusal(stream: Stream, new_app: AppFactory, refusal: Refusal) -> None:
    with proxied(stream.url) as (proxy, url):
        app = new_app(url=url, lease_s=2, renew_s=0.2, lease_margin_s=0.5)
        app.send_many("t", range(20), partition=0)
        seen: list[int] = []
        with app.consumer("t", "g") as consumer:
            for marker in (b"INSERT INTO ems_claim", b"UPDATE ems_client", b"UPDATE ems_claim SET acked_to"):
                proxy.arm(marker, Cut.BEFORE, refusal)
                messages = consumer.fetch(4, wait=10)
                seen += [message.body for message in messages]
                consumer.ack(*messages)
                consumer.flush()
                until(lambda: not proxy.armed, 10, f"{marker!r} is refused")
            while len(set(seen)) < 20:
                messages = consumer.fetch(20, wait=10)
                assert messages, sorted(seen)
                seen += [message.body for message in messages]
                consumer.ack(*messages)
            consumer.flush()
        assert set(seen) == set(range(20))
        assert stream.rows("SELECT * FROM ems_retry") == stream.rows("SELECT * FROM ems_dead") == []
        assert stream.value("SELECT COUNT(*) FROM ems_attempt") == 0, "no attempt is charged"
        app.close()


@pytest.mark.parametrize("refusal", [*AWAY, *UNHEARD_OF], ids=name_of)
def test_a_refusal_says_which_server_it_was(stream: Stream, refusal: Refusal) -> None:
    with proxied(stream.url) as (proxy, url), Database(url).session() as session:
        session.rows("SELECT 1")
        proxy.arm(b"DO 7", Cut.BEFORE, refusal)
        with pytest.raises(
            ConnectionLost,
            match=rf"127.0.0.1:{proxy.port} \(there .*:{urlsplit(stream.url).port}\): \({refusal.number}\)",
        ):
            session.send("DO 7")


@pytest.mark.parametrize("refusal", CONFLICTS, ids=name_of)
def test_a_conflict_between_nodes_is_retried_from_the_start(stream: Stream, refusal: Refusal) -> None:
    with proxied(stream.url) as (proxy, url), Database(url).session() as session:
        session.rows("SELECT 1")
        proxy.arm(b"COMMIT", Cut.BEFORE, refusal)
        runs: list[int] = []

        def work(session: object) -> None:
            runs.append(1)
            session.execute("INSERT INTO ems_leader VALUES ('x', 'h', NOW(6))")  # type: ignore[attr-defined]

        session.transaction(work)
        assert len(runs) == 2
        assert stream.value("SELECT COUNT(*) FROM ems_leader WHERE service = 'x'") == 1


def test_what_is_the_statements_fault_is_raised_at_once(stream: Stream) -> None:
    with pytest.raises(StatementRefused, match="1064"):
        stream.session.send("SELEC 1")
    with pytest.raises(StatementRefused, match=r"1264|1406"):
        stream.session.send("INSERT INTO ems_leader VALUES (REPEAT('x', 9999), 'h', NOW(6))")


def test_a_server_that_is_not_there_is_named_also_by_begin_and_by_registering() -> None:
    with Database("mysql://nobody@127.0.0.1:1/none").session() as session:
        with pytest.raises(ConnectionLost, match="2003"):
            session.begin()
        with pytest.raises(ConnectionLost, match="2003"):
            clients.register(session, ["c"], "p", "n", 5.0)


def test_a_conflict_is_no_lost_connection(stream: Stream) -> None:
    with proxied(stream.url) as (proxy, url), Database(url).session(patient=False) as session:
        session.rows("SELECT 1")
        for refusal in CONFLICTS:
            proxy.arm(b"DO 8", Cut.BEFORE, refusal)
            with pytest.raises(Conflict):
                session.transaction(lambda one: one.send("DO 8"))
