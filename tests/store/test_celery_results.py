"""Results and chords of Celery: what is kept, what is counted, and who ends a chord."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from emsworker.admin import Admin
from emsworker.admin.check import Severity, check
from emsworker.core.config import Settings
from emsworker.core.errors import InvalidName, MessageTooLarge
from emsworker.integrations.celery.services import sweep_celery
from emsworker.integrations.celery.store import chords, results, schedules
from emsworker.integrations.celery.store.chords import ChordPart
from emsworker.integrations.celery.store.results import StoredValue, check_key
from emsworker.integrations.celery.store.schedules import LastRun
from emsworker.publish.intake import IngestResult, ingest
from emsworker.store.engine.session import Session
from tests.support.streams import Stream, in_threads


def _entry(key: bytes, body: bytes, final: bool = False, ttl_s: float | None = 60.0) -> StoredValue:
    return StoredValue(key, body, final, ttl_s)


def test_a_success_is_never_overwritten(stream: Stream) -> None:
    for body, final in ((b"started", False), (b"retry", False), (b"done", True), (b"failed", False), (b"late", True)):
        results.put(stream.session, [_entry(b"a", body, final)])
    assert results.find(stream.session, [b"a", b"b"]) == {b"a": b"done"}


@pytest.mark.parametrize("is_final", [False, True])
def test_an_expired_result_is_gone_and_can_be_stored_again(stream: Stream, is_final: bool) -> None:
    results.put(stream.session, [_entry(b"a", b"old", final=True)])
    stream.rows("UPDATE ems_celery_result SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    assert results.find(stream.session, [b"a"]) == {}
    results.put(stream.session, [_entry(b"a", b"new", is_final)])
    results.put(stream.session, [_entry(b"a", b"newest", True)])
    assert results.find(stream.session, [b"a"]) == {b"a": b"new" if is_final else b"newest"}


def test_the_sweep_deletes_what_has_expired_and_keeps_what_is_for_ever(stream: Stream) -> None:
    results.put(stream.session, [_entry(b"%d" % number, b"", ttl_s=0.0) for number in range(5)])
    results.put(stream.session, [_entry(b"ever", b"", ttl_s=None), _entry(b"later", b"")])
    assert [results.sweep(stream.session, 3) for _ in range(3)] == [3, 2, 0]
    assert set(results.find(stream.session, [b"ever", b"later"])) == {b"ever", b"later"}


def test_results_that_no_beat_deletes_are_found(stream: Stream) -> None:
    results.put(
        stream.session, [_entry(b"ever", b"", ttl_s=None), _entry(b"later", b""), _entry(b"over", b"", ttl_s=0.0)]
    )
    assert _check(stream) == (Severity.OK, "no result is kept past its time")
    results.put(stream.session, [_entry(b"%d" % number, b"", ttl_s=-3601.0) for number in range(3)])
    assert _check(stream) == (Severity.WARNING, "3 results expired")
    sweep_celery(stream.session, Settings())
    assert _check(stream)[0] is Severity.OK


def _check(stream: Stream) -> tuple[Severity, str]:
    (found,) = (one for one in check(stream.url, None, {}) if one.name == "ems_celery_result")
    return found.severity, found.value


def test_keys_are_bytes_of_which_each_counts(stream: Stream) -> None:
    keys = [b"a", b"A", b"a ", "ä".encode(), b"a\0", b"x" * 512]
    results.put(stream.session, [_entry(key, b"of " + key) for key in keys])
    assert results.find(stream.session, keys) == {key: b"of " + key for key in keys}
    results.delete(stream.session, [b"a", b"A"])
    assert set(results.find(stream.session, keys)) == set(keys[2:])


@pytest.mark.parametrize("key", [b"", b"x" * 513])
def test_a_key_that_does_not_fit_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidName, match=f"has {len(key)} bytes; 1 to 512"):
        check_key("task id", key)


def test_thousands_of_results_are_read_by_a_few_statements(stream: Stream) -> None:
    keys = [b"%d" % number for number in range(10_000)]
    results.put(stream.session, [_entry(key, key) for key in keys])
    before = _selects(stream)
    assert len(results.find(stream.session, keys)) == len(keys)
    assert _selects(stream) - before <= 6


def _selects(stream: Stream) -> int:
    with stream.session.lend() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW SESSION STATUS LIKE 'Com_select'")
        (row,) = cursor.fetchall()
    stream.session.rollback()
    return int(row[1])


def test_a_value_that_the_server_does_not_take_is_refused_with_its_size(stream: Stream) -> None:
    body = bytes(stream.session.most_bytes // 2 + 100)
    with pytest.raises(MessageTooLarge, match=f"a result of {len(body)} bytes.*max_allowed_packet"):
        results.put(stream.session, [_entry(b"a", body)])
    with pytest.raises(MessageTooLarge, match=f"of {len(body)} bytes"):
        chords.count(stream.session, replace(_part(0), body=body), [])
    results.put(stream.session, [_entry(b"a", b"x" * 1_000_000)])
    assert len(results.find(stream.session, [b"a"])[b"a"]) == 1_000_000


# -- chords ------------------------------------------------------------------------------------------------------------


def _part(number: int | None, task_id: str | None = None) -> ChordPart:
    name = task_id or f"task {number}"
    return ChordPart(b"chord", number, name.encode(), f"outcome of {name}".encode(), 60.0)


def _return(session: Session, part: ChordPart, entries: Sequence[StoredValue] = ()) -> list[bytes] | None:
    """Return a part as a worker does."""
    if chords.count(session, part, entries):
        return None
    return session.transaction(lambda session: _end(session, part, entries))


def _end(session: Session, part: ChordPart, entries: Sequence[StoredValue] = ()) -> list[bytes] | None:
    return chords.take_parts(session, part.chord, 1 << 20) if chords.arrive(session, part, entries) else None


def test_the_last_part_gets_the_outcomes_of_all_in_their_order(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    assert _return(stream.session, _part(2)) is None
    chords.set_size(stream.session, b"chord", 3, 60.0)
    assert _return(stream.session, _part(0)) is None
    assert _return(stream.session, _part(1)) == [b"outcome of task 0", b"outcome of task 1", b"outcome of task 2"]
    assert stream.rows("SELECT COUNT(*) FROM ems_celery_chord_part") == [(0,)]


def test_parts_that_return_twice_count_once_before_and_after_the_end(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.set_size(stream.session, b"chord", 2, 60.0)
    assert [_return(stream.session, _part(0)) for _ in range(3)] == [None] * 3
    assert _return(stream.session, _part(1)) is not None
    assert [_return(stream.session, _part(number)) for number in (0, 1, 1, 7)] == [None] * 4
    assert stream.rows("SELECT arrived, is_done FROM ems_celery_chord") == [(2, 1)]


def test_parts_that_are_too_large_together_are_not_read(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    for number in range(3):
        chords.count(stream.session, _part(number), [])
    with pytest.raises(MessageTooLarge, match="have 51 bytes, at most 50"):
        stream.session.transaction(lambda session: chords.take_parts(session, b"chord", 50))


def test_a_crash_of_the_last_part_leaves_it_to_its_next_run(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.set_size(stream.session, b"chord", 2, 60.0)
    _return(stream.session, _part(0))
    assert not chords.count(stream.session, _part(1), [])
    stream.session.begin()
    assert _end(stream.session, _part(1)) is not None
    stream.session.close()  # the server rolls back
    assert _return(stream.new_session(), _part(1)) == [b"outcome of task 0", b"outcome of task 1"]


def test_a_part_is_stored_with_its_result_or_not_at_all(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.set_size(stream.session, b"chord", 2, 60.0)
    assert chords.count(stream.session, _part(0), [_entry(b"r0", b"0", True)])
    assert not chords.count(stream.session, _part(1), [_entry(b"r1", b"1", True)])
    assert set(results.find(stream.session, [b"r0", b"r1"])) == {b"r0"}


def test_parts_added_on_the_way_are_waited_for_and_those_without_a_number_come_last(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.set_size(stream.session, b"chord", 1, 60.0)
    chords.add_one(stream.session, b"chord", 60.0)
    assert _return(stream.session, _part(None, "added")) is None
    assert _return(stream.session, _part(0)) == [b"outcome of task 0", b"outcome of added"]


def test_a_chord_that_is_applied_again_is_a_new_run(stream: Stream) -> None:
    for _ in range(2):
        chords.open_chord(stream.session, b"chord", 60.0)
        assert _return(stream.session, _part(0)) is None
        chords.set_size(stream.session, b"chord", 2, 60.0)
        assert _return(stream.session, _part(1)) is not None


def test_threads_that_return_parts_at_once_end_a_chord_exactly_once(stream: Stream) -> None:
    count = 24
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.set_size(stream.session, b"chord", count, 60.0)
    sessions = [stream.new_session() for _ in range(8)]

    def work(number: int) -> list[list[bytes] | None]:
        parts = [_part(one) for one in range(number, count, 8)] * 2  # each of them twice
        return [_return(sessions[number], part) for part in parts]

    ends = [one for ended in in_threads(8, work) for one in ended if one is not None]
    for session in sessions:
        session.close()
    assert [len(end) for end in ends] == [count]


def test_expired_chords_are_deleted_with_their_parts_and_a_chord_at_work_does_not_expire(stream: Stream) -> None:
    chords.open_chord(stream.session, b"chord", 60.0)
    chords.count(stream.session, _part(0), [])
    stream.rows("UPDATE ems_celery_chord SET expires_at = UTC_TIMESTAMP(6) + INTERVAL 10 SECOND")
    chords.count(stream.session, _part(1), [])
    assert stream.rows("SELECT expires_at > UTC_TIMESTAMP(6) + INTERVAL 50 SECOND FROM ems_celery_chord") == [(1,)]
    assert chords.sweep(stream.session, 10) == 0
    stream.rows("UPDATE ems_celery_chord SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    assert chords.sweep(stream.session, 10) == 1
    assert stream.rows("SELECT COUNT(*) FROM ems_celery_chord_part") == [(0,)]


# -- schedules ---------------------------------------------------------------------------------------------------------


def test_of_several_schedulers_one_moves_an_entry_on(stream: Stream) -> None:
    first = datetime(2026, 1, 1, 12, 0, 0, 123456, UTC)
    second = first + timedelta(seconds=1)
    schedules.add_runs(stream.session, "app", {"e": LastRun(first, 0)})
    schedules.add_runs(stream.session, "app", {"e": LastRun(second, 7), "gone": LastRun(first, 0)})
    sessions = [stream.new_session() for _ in range(6)]

    def work(number: int) -> bool:
        return sessions[number].transaction(lambda s: schedules.advance(s, "app", "e", first, second))

    assert sorted(in_threads(6, work)) == [False] * 5 + [True]
    schedules.delete_runs(stream.session, "app", ["gone"])
    assert schedules.list_runs(stream.session, "app") == {"e": LastRun(second, 1)}
    assert schedules.list_runs(stream.session, "other") == {}
    for session in sessions:
        session.close()


def test_plain_sql_writes_to_no_queue(stream: Stream) -> None:
    """A row there would be a dead letter, for a reason that helps nobody: it lacks what Celery puts into a message."""
    for topic in ("amqp:celery", "amqp-bus", "amqp"):
        stream.topic(topic)
        stream.rows("INSERT INTO ems_publish (topic, body, task) VALUES (%s, '[1]', 'shop.add')", topic)
    assert ingest(stream.session, Settings(), 100) == IngestResult(1, 2)
    refused = [one.error for one in Admin(stream.app()).refused.list()]
    assert refused == [
        f"topic {topic!r} is one of celery, whose own programs alone can send to it"
        for topic in ("amqp:celery", "amqp-bus")
    ]
