"""Bodies that are kept beside their messages: what is written with what, who finds them, and when they are deleted.

They are small here, and so are their chunks; ``tests/process/test_large.py`` has large ones.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.dead import DeadRef
from emsworker.admin.placement import TopicMove
from emsworker.beat.forwarder import forwarders
from emsworker.beat.large_bodies import SweepBodies
from emsworker.beat.relay import Relay
from emsworker.beat.retention import trim
from emsworker.core.errors import DecodeError, FenceLost, MessageTooLarge, UnknownMessage
from emsworker.core.flush import ResultRow
from emsworker.core.ids import new_claim_id, new_uid, uid_text
from emsworker.core.large import LargeBody
from emsworker.core.model import Claim, ClaimSource, Failure, Group, Topic
from emsworker.local import LocalDatabase
from emsworker.store.groups import claims, results
from emsworker.store.groups.progress import flush
from emsworker.store.stream import large
from tests.support.servers import connect
from tests.support.several import Several, several_databases
from tests.support.streams import Stream, failed, flush_of, stored
from tests.support.waiting import until

LARGE, CHUNK = 1000, 300
BODIES = "SELECT COUNT(*) FROM ems_large_body"
_KEPT = """SELECT uid, body FROM ems_outbox UNION ALL SELECT uid, body FROM ems_message WHERE kind = 'message'
    UNION ALL SELECT uid, body FROM ems_dead"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("emsworker.broker.mysql", "emsworker.broker.large"):
        monkeypatch.setattr(f"{module}.LARGE_BYTES", LARGE)
    for module in ("emsworker.core.large", "emsworker.store.stream.large"):
        monkeypatch.setattr(f"{module}.CHUNK_BYTES", CHUNK)


def sweep(stream: Stream) -> None:
    """One round of the beat's service."""
    service, settings = SweepBodies(), stream.app().settings
    while service(stream.session, settings) == 0.0:
        pass


def trim_all(stream: Stream) -> None:
    while trim(stream.session, stream.app().settings) == 0.0:
        pass


def take(stream: Stream, app: Ems, topic: Topic, group: Group, client: str, batch: int = 500) -> Claim | None:
    """Claim messages, whose bodies are read as by a worker of the app."""
    claimant = replace(stream.claimant(topic, group, client, batch), decoder=app.stream.decoder)
    claim = claims.take_retries(stream.session, claimant) or claims.take_range(stream.session, claimant, 0)
    return claim or None


def end(stream: Stream, topic: Topic, claim: Claim, dead: bool = False) -> None:
    failures = [failed(one.offset, one.attempt, dead="no") for one in claim.messages] if dead else []
    failures += [Failure.gone(offset, attempt) for offset, attempt in claim.gone]
    done = [(one.offset, one.attempt, 1) for one in claim.messages if not dead and claim.source is ClaimSource.RETRY]
    ended = flush_of(claim, topic, claim.hi, failures=failures, done_offsets=done, finished=True)
    flush(stream.session, ended)


def refs_of(admin: Admin) -> list[DeadRef]:
    """The dead letters."""
    return [entry.ref for entry in admin.dead.page().rows]


def references(stream: Stream) -> set[bytes]:
    """The ids of the bodies to which messages refer, wherever they are."""
    found = [bytes(body) for _, body in stream.rows(_KEPT)]
    return {LargeBody.decode(body).body_id for body in found if body.startswith(b'{"ems-large"')}


def bodies(stream: Stream) -> set[bytes]:
    """The ids of the bodies that are kept, each with all of its chunks."""
    rows = stream.rows("SELECT body_id, size DIV %s + (size MOD %s > 0) FROM ems_large_body", CHUNK, CHUNK)
    chunks = dict(stream.rows("SELECT body_id, COUNT(*) FROM ems_body_chunk GROUP BY 1"))
    assert chunks == dict(rows)
    return {bytes(body_id) for body_id, _ in rows}


class Deeds:
    """All that happens to messages, each by chance; whatever was read is what was sent.

    Attributes:
        read: how many large bodies were read.
    """

    def __init__(self, stream: Stream, choose: Random) -> None:
        self.stream, self.choose, self.app, self.admin = stream, choose, stream.app(), Admin(stream.app())
        self.topic = stream.topic(max_message_bytes=1 << 20, keep_done_s=0)
        self.group, self.client = stream.group(self.topic), stream.client()
        self.sent: dict[str, list[bytes]] = {}
        self.own = [uid_text(new_uid()) for _ in range(3)]
        self.read = 0

    def send(self, transaction: Any = None) -> None:
        body = self.choose.randbytes(self.choose.choice((1, LARGE, LARGE + 1, 5 * CHUNK, 3000)))
        dedup = {"dedup_key": self.choose.choice("ab"), "dedup_window": 0}
        ways: list[dict[str, Any]] = [{}, {}, {"countdown": 0}, dedup, {"uid": self.choose.choice(self.own)}]
        receipt = self.app.send("t", body, transaction=transaction, **self.choose.choice(ways))
        if receipt.created:
            self.sent.setdefault(receipt.id, []).append(body)

    def transact(self) -> None:
        with suppress(ZeroDivisionError), self.app.transaction() as tx:
            self.send(tx)
            self.send(tx)
            if self.choose.random() < 0.4:
                raise ZeroDivisionError

    def lend(self) -> None:
        with self.stream.other() as connection:
            self.send(connection)
            connection.commit() if self.choose.random() < 0.6 else connection.rollback()

    def cancel(self) -> None:
        with suppress(UnknownMessage):
            self.app.cancel(self.choose.choice(list(self.sent) or self.own), topic="t")

    def run(self, *, dead: bool = False) -> bool:
        claim = take(self.stream, self.app, self.topic, self.group, self.client, self.choose.randint(1, 4))
        for message in claim.messages if claim else ():
            assert message.body in self.sent[message.id]
            self.read += message.is_large
        if claim:
            end(self.stream, self.topic, claim, dead)
        return bool(claim)

    def fail(self) -> None:
        self.run(dead=True)

    def requeue(self) -> None:
        refs = refs_of(self.admin)[:2]
        self.admin.dead.requeue(refs) if self.choose.random() < 0.6 else self.admin.dead.delete(refs)

    def relay(self) -> bool:
        return Relay()(self.stream.session, self.app.settings) == 0.0

    def trim(self) -> None:
        trim_all(self.stream)

    def sweep(self) -> None:
        sweep(self.stream)

    def finish(self) -> None:
        """Let everything end."""
        self.admin.dead.delete(refs_of(self.admin))
        while self.relay() or self.run():
            pass
        self.trim()
        self.sweep()


@pytest.mark.parametrize("seed", range(2))
def test_random_deeds_leave_no_message_without_its_body_and_no_body_without_its_message(
    stream: Stream, seed: int
) -> None:
    choose = Random(seed)
    one = Deeds(stream, choose)
    deeds: list[Callable[[], object]] = [one.send, one.send, one.send, one.transact, one.lend, one.cancel, one.run]
    deeds += [one.run, one.fail, one.requeue, one.trim, one.sweep, one.relay]
    for _ in range(150):
        choose.choice(deeds)()
        assert references(stream) <= bodies(stream)
    one.sweep()
    assert references(stream) == bodies(stream) != set()
    one.finish()
    assert bodies(stream) == set() and one.read > 20


def test_many_are_sent_in_order_and_small_ones_go_as_ever(stream: Stream) -> None:
    topic, app = stream.topic(max_message_bytes=1 << 20), stream.app()
    group, sizes = stream.group(topic), [1, 2, LARGE + 1, 3, 4, 5, 2 * LARGE, 2 * LARGE + 1, 6]
    receipts = app.send_many("t", [bytes(size) for size in sizes])
    assert [receipt.offset for receipt in receipts] == [1, 2, None, 4, 5, 6, None, None, 9]
    before = stream.status("Com_insert")["Com_insert"]
    app.send_many("t", [b"small"] * 5)
    assert stream.status("Com_insert")["Com_insert"] == before + 1
    claim = take(stream, app, topic, group, stream.client())
    assert claim and [len(message.body) for message in claim.messages[:9]] == sizes
    assert stream.rows("SELECT size, total_size - LENGTH(headers) FROM ems_message WHERE `offset` IN (2, 3)") == [
        *[(2, 2), (LARGE + 1, LARGE + 1)]
    ]


def test_a_claim_counts_whole_bodies(stream: Stream) -> None:
    topic, app = stream.topic(max_message_bytes=1 << 20), stream.app()
    group = stream.group(topic)
    app.send_many("t", [bytes(100_000)] * 5)
    claim = claims.take_range(stream.session, stream.claimant(topic, group, stream.client(), batch_bytes=250_000), 0)
    assert claim and (claim.lo, claim.hi) == (1, 2)


def test_a_body_keeps_its_headers_and_coding(stream: Stream) -> None:
    topic, app = stream.topic(max_message_bytes=1 << 20), stream.app()
    group = stream.group(topic)
    value = {"text": [Random(1).randbytes(2000).hex(), "ü"]}
    for options in (
        {},
        {"compression": "zlib"},
        {"serializer": "yaml"},
        {"compression": "bzip2", "serializer": "yaml"},
    ):
        app.send("t", value, headers={"by": "hand"}, **options)
    app.send("t", "text" * LARGE)
    reader = stream.app(accept=("json", "yaml"))
    claim = take(stream, reader, topic, group, stream.client())
    assert claim and [message.body for message in claim.messages] == [value] * 4 + ["text" * LARGE]
    assert all(message.is_large for message in claim.messages)
    assert {message.headers.get("by") for message in claim.messages[:4]} == {"hand"}
    (message,) = Admin(stream.app()).messages.get("t/0/5")
    assert message.raw == b"text" * LARGE and message.size == 4 * LARGE
    (shown,) = Admin(stream.app()).messages.get("t/0/5", whole=False)
    assert shown.body["bytes"] == 4 * LARGE and shown.problem is None


def test_a_dead_letter_has_its_body_also_after_retention(stream: Stream) -> None:
    topic, app, admin = stream.topic(max_message_bytes=1 << 20, keep_done_s=0), stream.app(), Admin(stream.app())
    group, client = stream.group(topic), stream.client()
    body = bytes(range(256)) * 20
    app.send("t", body)
    claim = take(stream, app, topic, group, client)
    assert claim is not None
    end(stream, topic, claim, dead=True)
    trim_all(stream)
    sweep(stream)
    assert stored(stream, "t") == {}
    (ref,) = refs_of(admin)
    letter = admin.dead.show(ref)
    assert letter.raw == body and letter.size == len(body)
    assert admin.dead.requeue([ref]) == 1
    claim = take(stream, app, topic, group, client)
    assert claim and claim.messages[0].body == body
    end(stream, topic, claim)
    trim_all(stream)
    sweep(stream)
    assert bodies(stream) == set()


def test_a_sender_that_repeats_itself_is_not_robbed_of_its_body(stream: Stream) -> None:
    """Its answer was lost; meanwhile its message has run, and the beat is about to delete the body."""
    stream.topic(max_message_bytes=1 << 20)
    stream.app().send("t", bytes(2 * LARGE))
    (body_id,) = bodies(stream)
    stream.rows("DELETE FROM ems_message WHERE `offset` > 0")
    with stream.other() as repeating, repeating.cursor() as cursor:
        cursor.execute("UPDATE ems_large_body SET created_at = UTC_TIMESTAMP(6)")
        assert not large.delete_unused(stream.session, body_id), "it is passed over while the sender writes"
        repeating.commit()
    assert large.delete_unused(stream.session, body_id)
    assert bodies(stream) == set()


def test_a_body_that_is_gone_is_an_error_that_says_so(stream: Stream) -> None:
    topic, app = stream.topic(max_message_bytes=1 << 20), stream.app()
    group = stream.group(topic)
    app.send("t", bytes(2 * LARGE))
    stream.rows("DELETE FROM ems_body_chunk WHERE chunk = 1")
    claim = take(stream, app, topic, group, stream.client())
    with pytest.raises(DecodeError, match="of 2000 bytes that is kept beside the message is not there"):
        _ = claim and claim.messages[0].body


def test_archived_topics_take_none(stream: Stream) -> None:
    stream.topic(max_message_bytes=1 << 20, archive_first=True)
    with pytest.raises(MessageTooLarge, match="'t' is archived"):
        stream.app().send("t", bytes(2 * LARGE))
    assert stream.app().send("t", bytes(LARGE)).offset == 1


def test_a_message_that_only_looks_like_a_reference_is_one_of_its_own(stream: Stream) -> None:
    topic, app = stream.topic(), stream.app()
    group = stream.group(topic)
    values = [{"ems-large": "no number"}, {"ems-large": "ffffffff"}, {"ems-large": ""}, {"ems-large": "00000001"}]
    app.send_many("t", values)
    app.send_many("t", values, countdown=0)
    Relay()(stream.session, app.settings)
    client, found = stream.client(), []
    while claim := take(stream, app, topic, group, client):  # those that claim to be large come alone
        found += [message.body for message in claim.messages]
        end(stream, topic, claim)
    assert found == values * 2
    assert not stream.rows("SELECT 1 FROM ems_message WHERE total_size < LENGTH(headers) + LENGTH(body)")
    sweep(stream)


def test_a_body_follows_its_message_to_another_server(server: LocalDatabase) -> None:
    with several_databases(server, "main", "orders") as several:
        app = Ems(url=several.url, servers=several.setting(orders="orders.*"), max_message_bytes=1 << 20)
        body, later = bytes(range(250)) * 10, bytes(3 * LARGE)
        app.send("orders.new", b"first")
        with app.transaction() as tx:
            tx.send("orders.new", body)
        app.send("orders.new", later, countdown=3600)
        with _forwarding(app, several):
            until(lambda: _whole(several, "orders", "ems_message") == [body], 20, "it is sent from main to orders")
            TopicMove(app, "orders.new", "main").run(timeout_s=20)
            until(lambda: _whole(several, "main", "ems_outbox") == [later], 20, "it goes along with its topic")
            assert _whole(several, "orders", "ems_outbox") == []
        with several.database("orders").session() as session:
            assert len(large.look(session, None, 9).unused) == 1
        app.close()


@contextmanager
def _forwarding(app: Ems, several: Several) -> Iterator[None]:
    threads = [one for source in several.urls for one in forwarders(app.settings, source, lambda *_: None)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.stop()
    for thread in threads:
        thread.join(10)


def _whole(several: Several, server: str, table: str) -> list[bytes]:
    """The large bodies of the messages in a table, read on its server; the relay has moved what is due."""
    with several.database(server).session() as session, connect(several.urls[server]) as connection:
        Relay()(session, Ems(url=several.urls[server]).settings)
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT body FROM {table} WHERE LEFT(body, 13) = '{{\"ems-large\":'")
            return [large.read(session, LargeBody.decode(body)) for (body,) in cursor.fetchall()]


def test_a_large_result_is_written_with_its_row_and_deleted_after_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emsworker.store.groups.results.RESULT_BYTES", LARGE // 2)
    app, topic = stream.app(), stream.topic()
    group, client = stream.group(topic), stream.client()
    receipt = app.send("t", 1)
    claim = take(stream, app, topic, group, client)
    assert claim is not None
    uid, first, second = claim.messages[0].uid, random_text(5 * CHUNK), random_text(2 * CHUNK + 1)
    chunks = "SELECT COUNT(*) FROM ems_result_chunk"

    def store(value: bytes, claim: Claim, *, is_small: bool = False) -> None:
        row = ResultRow(uid, value, ttl_s=60, body_id=None if is_small else new_uid())
        flushed = flush_of(claim, topic, claim.hi, results=[row], finished=False)
        flush(stream.session, flushed)
        flush(stream.session, flushed)  # its answer was lost

    with pytest.raises(FenceLost):
        store(first, replace(claim, claim_id=new_claim_id()))
    assert stream.value(chunks) == 0, "no chunks without a result"
    store(first, claim)
    assert stream.value(chunks) == 5
    row = results.find(stream.session, [topic.id], [uid], None)[uid]
    assert len(row.body or b"") < 40, "whoever only asks for the state reads no chunk"
    assert app.result(receipt).get(1).encode() == first[1:-1]
    sweep(stream)
    assert app.result(receipt).get(1).encode() == first[1:-1]
    store(second, claim)  # it has run again, perhaps because a dead letter was requeued
    sweep(stream)
    assert app.result(receipt).get(1).encode() == second[1:-1] and stream.value(chunks) == 3
    early = app.result(receipt)
    assert early.status == "done"
    store(b"2", claim, is_small=True)
    sweep(stream)
    assert (app.result(receipt).get(1), stream.value(chunks), stream.value(BODIES)) == (2, 0, 0)
    with pytest.raises(DecodeError, match="the result of 601 bytes was deleted meanwhile"):
        early.get(1)


def random_text(size: int) -> bytes:
    """JSON of this size."""
    return b'"%s"' % Random(size).randbytes(size).hex().encode()[: size - 2]
