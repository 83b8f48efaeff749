"""Results when asked for."""

import os
import random
import signal
from typing import Any

import pytest

from emsworker import Ems, ResultTimeout, TaskFailed
from emsworker.core.ids import new_uid, uid_text
from emsworker.store.groups import results as store
from tests.process.apps import results as tasks
from tests.process.stream import Stream
from tests.support.waiting import until
from tests.support.worker import kill

APP = "tests.process.apps.results:app"


def _app(stream: Stream, **settings: Any) -> Ems:
    """The same tasks, here as their sender."""
    app = Ems("caller", url=stream.url, **settings)
    for task in next(iter(tasks.app.registry.routes.values())).tasks.values():
        app.task(name=task.name, bind=task.bind, transactional=task.options.transactional)(task.function)
    stream.app = app
    return app


def _send(app: Ems, name: str, *args: Any) -> Any:
    return next(iter(app.registry.routes.values())).tasks[name].delay(*args)


def test_values_errors_and_time(stream: Stream) -> None:
    app = _app(stream)
    worker = stream.worker(APP)
    receipt = _send(app, "add", 2, 3)
    assert app.result(receipt.id).get(timeout=15) == 5
    result = app.result(receipt)
    assert (result.status, result.failed, result.traceback) == ("done", False, None)
    assert app.result(receipt, group="workers").get(1) == 5
    result.forget()
    assert app.result(receipt).status == "pending"

    failed = app.result(_send(app, "fail", "ümlaut"))
    with pytest.raises(TaskFailed, match="Odd: ümlaut") as caught:
        failed.get(15)
    assert (caught.value.error_type, caught.value.message) == ("Odd", "ümlaut")
    assert "in fail\n" in caught.value.traceback and "raise Odd(text)" in caught.value.traceback
    assert failed.failed and failed.traceback == caught.value.traceback
    with pytest.raises(TaskFailed) as caught:
        app.result(_send(app, "doomed")).get(15)  # it keeps no results, but its dead letter tells
    assert (caught.value.error_type, caught.value.message) == ("Odd", "no hope")
    assert "raise Odd" in caught.value.traceback
    with pytest.raises(TaskFailed, match="Reject"):
        app.result(_send(app, "reject")).get(15)

    quiet = _send(app, "quiet")
    with pytest.raises(ResultTimeout, match="result=True"):
        app.result(quiet).get(0.3)
    with pytest.raises(TaskFailed, match="EncodeError"):
        app.result(_send(app, "strange")).get(15)

    short = _send(app, "short")
    assert app.result(short).get(15) == "soon gone"
    until(lambda: app.result(short).status == "pending", 5, "its time has passed")
    left = "SELECT COUNT(*) FROM ems_result WHERE expires_at < UTC_TIMESTAMP(6)"
    until(lambda: stream.one(left) == 0, 10, "the beat swept them")
    assert worker.stop() == 0


def _selects(app: Ems) -> int:
    return int(app.stream.database.thread_session().rows("SHOW SESSION STATUS LIKE 'Com_select'")[0][1])


def test_many_results_by_one_query_written_with_the_acked_to(stream: Stream) -> None:
    app = _app(stream)
    receipts = [_send(app, "add", n, n) for n in range(200)]
    worker = stream.worker(APP, threads=1)
    assert app.results(receipts).get(30) == [2 * n for n in range(200)]
    found = app.results([receipt.id for receipt in receipts])
    before = _selects(app)
    assert found.ready
    assert _selects(app) - before <= 2, "one for the results, one for the topic if it was forgotten"
    assert [item.status for item in found[:3]] == ["done"] * 3
    assert len(found) == 200 and found[5].get() == 10
    assert stream.one("SELECT COUNT(DISTINCT ended_at) FROM ems_result") < 60, "no statement of its own for each"
    mixed = app.results([_send(app, "add", 1, 1), _send(app, "reject")])
    values = mixed.get(15, raises=False)
    assert values[0] == 2 and isinstance(values[1], TaskFailed)
    mixed.forget()
    assert mixed[0].status == "pending"
    assert worker.stop() == 0


def test_large_results_do_not_burst_a_packet(one_stream: Stream) -> None:
    app = _app(one_stream)
    # Twice as long as a literal; a server that takes packets of 1 MiB has no place for the largest.
    size = min(900_000, one_stream.one("SELECT @@max_allowed_packet") // 2 - 8000)
    receipts = [_send(app, "big", size) for _ in range(30)]
    over = app.result(_send(app, "big", 2 << 20))
    worker = one_stream.worker(APP, settings={"claim_s": 5})
    assert {len(value) for value in app.results(receipts).get(30)} == {size}
    with pytest.raises(TaskFailed, match="over the limit"):
        over.get(15)
    assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("EMS_TEST_LONG") != "1", reason="20 s: set EMS_TEST_LONG=1")
def test_a_task_that_kills_its_process_has_failed(one_stream: Stream) -> None:
    app = _app(one_stream)
    result = app.result(_send(app, "crash"))
    one_stream.worker(APP)
    with pytest.raises(TaskFailed, match=r"died|lost|gone|orphan"):
        result.get(40)


@pytest.mark.chaos
def test_a_transactional_task_and_its_result_are_one_commit(stream: Stream) -> None:
    app = _app(stream)
    total = 40
    receipts = [_send(app, "pay", n) for n in range(total)]
    worker = stream.worker(APP, processes=2, threads=2)
    chance = random.Random(3)
    until(lambda: stream.one("SELECT COUNT(*) FROM effect") > 3, 20, "some are through")
    kill(chance.choice(until(worker.children, 10, "children")), signal.SIGKILL)
    assert app.results(receipts).get(60) == list(range(total))
    assert stream.rows("SELECT n FROM effect ORDER BY n") == [(n,) for n in range(total)]
    assert stream.one("SELECT COUNT(*) FROM ems_result") == total
    assert worker.stop() == 0


def test_results_in_redis(one_stream: Stream, redis_url: str) -> None:
    more = {"result_backend": "redis", "redis_url": redis_url}
    app = _app(one_stream, **more)
    worker = one_stream.worker(APP, settings=more)
    receipts = [_send(app, "add", n, 1) for n in range(20)]
    assert app.results(receipts).get(15) == [n + 1 for n in range(20)]
    with pytest.raises(TaskFailed, match="Odd: in redis") as caught:
        app.result(_send(app, "fail", "in redis")).get(15)
    assert "raise Odd" in caught.value.traceback
    short = app.result(_send(app, "short"))
    assert short.get(15) == "soon gone"
    until(lambda: app.result(short.id).status == "pending", 5, "redis let it expire")
    assert app.result(_send(app, "pay", 1)).get(15) == 1
    assert one_stream.rows("SELECT * FROM ems_result") == []
    app.results(receipts).forget()
    assert app.result(receipts[0]).status == "pending"
    assert worker.stop() == 0


def test_the_sweep_is_bounded(one_stream: Stream) -> None:
    with one_stream.app.stream.database.session() as session:
        for _ in range(3):
            packet = session.packet()
            rows = [store.ResultRow(new_uid(), b"1", ttl_s=0.0) for _ in range(10)]
            packet.begin()
            store.add_results(packet, 1, 1, rows)
            packet.commit()
            packet.send()
        assert [store.sweep(session, 20) for _ in range(3)] == [20, 10, 0]
    assert one_stream.app.result(uid_text(new_uid())).status == "pending"


def _rows_read(stream: Stream, count: int) -> float:
    """Rows that the server reads for a message of a drain in which each keeps a result that is fetched."""
    before, end = _handled(stream), _claimed(stream) + count
    receipts = stream.app.send_many("bulk", range(count))
    worker = stream.worker(APP, threads=2, topics=["bulk"])
    until(
        lambda: _claimed(stream) == end and not stream.open_claims(), 60, "all is done", 0.5
    )  # a look reads rows, too
    assert worker.stop() == 0
    assert stream.app.results(receipts).get(60) == list(range(count))
    return (_handled(stream) - before) / count


def _claimed(stream: Stream) -> int:
    return int(
        stream.one(
            "SELECT COALESCE(SUM(c.next_offset - 1), 0) FROM ems_topic t JOIN ems_group g ON g.topic_id = t.id "
            "JOIN ems_cursor c ON c.group_id = g.id WHERE t.name = 'bulk'"
        )
    )


def _handled(stream: Stream) -> int:
    shown = dict(
        stream.rows(
            "SHOW GLOBAL STATUS WHERE Variable_name IN ('Handler_read_key', 'Handler_read_next', 'Handler_read_rnd_next')"
        )
    )
    return sum(map(int, shown.values()))


@pytest.mark.alone
def test_a_table_full_of_results_does_not_slow_the_stream(stream: Stream) -> None:
    rows = 1_000_000 if os.environ.get("EMS_TEST_LONG") == "1" else 100_000
    _rows_read(stream, 1000)  # what a first run looks up once
    empty = _rows_read(stream, 10_000)
    digits = "(SELECT 0 AS n" + "".join(f" UNION ALL SELECT {n}" for n in range(1, 10)) + ")"
    places = range(len(str(rows)) - 1)
    number = " + ".join(f"{10**place} * d{place}.n" for place in places)
    stream.run(
        "INSERT INTO ems_result (topic_id, uid, group_id, state, body, ended_at, expires_at) "
        f"SELECT 1, UNHEX(LPAD(HEX({number}), 32, '0')), 1, 'done', '1', NOW(6), NOW(6) + INTERVAL 1 DAY "
        f"FROM {', '.join(f'{digits} d{place}' for place in places)}"
    )
    assert stream.one("SELECT COUNT(*) FROM ems_result") >= rows
    full = _rows_read(stream, 10_000)
    print(f"{empty:.1f} rows read for a message before, {full:.1f} beside {rows} results")
    assert full <= 1.5 * empty + 2, "one scan of the results would read ten rows for each message"
