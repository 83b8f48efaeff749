"""Publishers of several processes in one partition: each message is one statement, and nobody is refused twice."""

import threading

import pytest

from emsworker import Ems
from emsworker.core.model import Receipt
from emsworker.publish.allocators.mysql import _ALONE, MysqlAllocator
from emsworker.store.engine.sql import Sql
from emsworker.store.stream import messages
from tests.support import rows
from tests.support.streams import Stream, stored, wait_until

_COUNTED = ("Com_begin", "Com_update", "Com_insert", "Com_commit")
_LARGE = 20_000_000  # an offset that takes more than three bytes


def _counts(app: Ems) -> dict[str, int]:
    """How many statements of each kind the server has run for the app's connection."""
    found = app.stream.producer._session.rows(Sql("SHOW SESSION STATUS LIKE 'Com\\_%'"))
    return {str(name): int(value) for name, value in found if name in _COUNTED}


def _allocator(app: Ems) -> MysqlAllocator:
    allocator = app.stream.producer._allocator
    assert isinstance(allocator, MysqlAllocator)
    return allocator


def _two(stream: Stream) -> tuple[Ems, Ems]:
    """Two publishers that know of each other, each with one message in the partition after the first three."""
    one, other = stream.app(allocator="mysql"), stream.app(allocator="mysql")
    assert [app.send("t", 0).offset for app in (one, other, one, other)] == [1, 2, 3, 4]
    return one, other


def test_each_message_is_one_statement(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = _two(stream)
    before = _counts(one)
    monkeypatch.setattr(MysqlAllocator, "reseed", lambda *_: pytest.fail("an offset was taken"))
    for number in range(30):
        assert one.send("t", number).offset == 5 + 2 * number
        assert other.send("t", number).offset == 6 + 2 * number
    after = _counts(one)
    assert {name: after[name] - before[name] for name in _COUNTED} == {
        **{"Com_begin": 0, "Com_update": 0, "Com_insert": 30, "Com_commit": 0}
    }


def test_many_messages_are_one_statement(stream: Stream) -> None:
    one, other = _two(stream)
    before = _counts(one)
    for number in range(3):
        assert [receipt.offset for receipt in one.send_many("t", range(3))] == [5 + 4 * number + n for n in range(3)]
        assert other.send("t", 0).offset == 8 + 4 * number
    assert _counts(one)["Com_insert"] - before["Com_insert"] == 3
    assert stored(stream, "t") == {0: [*range(1, 17)]}
    bodies = stream.rows("SELECT body FROM ems_message WHERE `offset` BETWEEN 5 AND 7 ORDER BY `offset`")
    assert bodies == [(b"0",), (b"1",), (b"2",)]


def test_offsets_of_any_size_are_told(stream: Stream) -> None:
    one, other = _two(stream)
    for start in (250, 65_530, _LARGE):
        rows.trim(stream.rows, start)
        assert [app.send("t", 0).offset for app in (one, other) * 6] == [*range(start, start + 12)]


@pytest.mark.parametrize("count", [1, 3])
def test_who_waits_for_a_commit_is_placed_behind_it(
    stream: Stream, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The end of the partition is read when its row is locked, not before: nobody is refused."""
    one, _ = _two(stream)
    monkeypatch.setattr(MysqlAllocator, "reseed", lambda *_: pytest.fail("an offset was taken"))
    receipts: list[Receipt] = []
    waits = stream.lock_waits()
    with stream.other() as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_partition FOR UPDATE")
        cursor.execute(
            "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, born_at) "
            "SELECT id, 0, 5, REPEAT('u', 16), '{}', '0', NOW(6) FROM ems_topic WHERE name = 't'"
        )
        sending = threading.Thread(target=lambda: receipts.extend(one.send_many("t", range(count))))
        sending.start()
        wait_until(lambda: stream.lock_waits() > waits)
        other.commit()
        sending.join()
    assert [receipt.offset for receipt in receipts] == [*range(6, 6 + count)]


def test_who_is_alone_again_knows_the_end(stream: Stream) -> None:
    one, other = _two(stream)
    topic_id = stream.value("SELECT id FROM ems_topic WHERE name = 't'")
    session = one.stream.producer._session
    bases = []
    for _ in range(_ALONE + 2):
        bases.append(_allocator(one).place(session, topic_id, 0, 1).base)
        one.send("t", 0)
    assert bases == [None] * (_ALONE + 1) + [5 + _ALONE + 1], "the first one follows a message of the other's"
    assert other.send("t", 0).offset == 5 + _ALONE + 2
    assert one.send("t", 0).offset == 5 + _ALONE + 3, "refused once, and placed"


def test_a_counter_that_nobody_has_raised_is_raised_once_for_many_messages(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without workers and beat nobody tells the server how far a partition goes, and offsets far above are refused."""
    monkeypatch.setattr(messages, "FARTHEST", 40)
    app = stream.app(allocator="mysql")
    app.send("t", 0)
    before = _counts(app)
    assert [app.send("t", 0).offset for _ in range(150)] == [*range(2, 152)]
    after = _counts(app)
    assert stream.value("SELECT next_offset FROM ems_partition") > 100
    assert after["Com_update"] - before["Com_update"] <= 5
