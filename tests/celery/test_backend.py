"""The result backend: a worker in this process, the broker a Redis, so that only results are on a stream."""

import gc
import os
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pymysql
import pytest
from celery import Celery, chain, chord, group, states
from celery.contrib.testing.worker import start_worker
from celery.exceptions import BackendStoreError, ChordError, TimeoutError
from celery.result import GroupResult

from emsworker.core.errors import ConfigError, ConnectionLost, StoreUnavailable
from emsworker.integrations.celery.store import results as store
from emsworker.store.engine.database import Database
from tests.support.machine import machine_s
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until

WAIT_S = 20


@pytest.fixture
def app(database: str, redis_url: str) -> Iterator[Celery]:
    with Database(database).session() as session:
        migrate(session)
    app = Celery(f"t{uuid.uuid4().hex}", broker=redis_url, backend=f"ems+{database}", set_as_current=True)
    app.conf.update(result_extended=True, broker_connection_retry_on_startup=True, result_chord_join_timeout=WAIT_S)

    @app.task(shared=False)
    def add(*numbers: Any) -> Any:
        return sum(sum(one) if isinstance(one, list) else one for one in numbers)

    @app.task(shared=False)
    def ident(value: Any) -> Any:
        return value

    @app.task(shared=False)
    def fail(*args: Any) -> None:
        raise KeyError("why", len(args))

    seen = app.progress_was_seen = threading.Event()

    @app.task(shared=False, bind=True)
    def report(self: Any) -> str:
        self.update_state(state="PROGRESS", meta={"done": 3})
        assert seen.wait(WAIT_S)
        return "end"

    @app.task(shared=False, ignore_result=True)
    def quiet(value: int) -> int:
        return value

    calls: list[Any] = []
    app.calls = calls

    @app.task(shared=False)
    def note(*args: Any) -> None:
        calls.append(args)

    yield app
    app.backend._storage.close()
    app.close()


@pytest.fixture
def worker(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(app.log, "setup", lambda **options: None)  # it would set the level of the root logger for good
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=30) as worker:
        yield worker


def _task(app: Celery, name: str) -> Any:
    return next(task for full, task in app.tasks.items() if full.endswith(f"test_backend.{name}"))


def _sql(database: str, statement: str) -> Any:
    connection = connect(database)
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            rows = cursor.fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


def test_a_url_alone_selects_the_backend_and_hides_its_password(app: Celery, database: str) -> None:
    assert type(app.backend).__name__ == "StreamBackend"
    secret = Celery(backend="ems+mysql://user:secret@db1,db2/stream").backend
    assert "secret" not in secret.as_uri()
    assert secret.as_uri(include_password=True) == "ems+mysql://user:secret@db1,db2/stream"


def test_a_malformed_url_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"result_backend.*names no database") as refused:
        _ = Celery(backend="ems+mysql://user:secret@host").backend
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "gzip"])
def test_values_come_back_as_they_were(app: Celery, serializer: str, compression: str | None) -> None:
    app.conf.update(result_serializer=serializer, result_compression=compression, accept_content=["json", "pickle"])
    value = {"ä": [1, None, "x" * 3000], "big": "y" * 1_000_000}
    app.backend.store_result("id", value, states.SUCCESS)
    assert app.AsyncResult("id").get(timeout=WAIT_S) == value
    app.AsyncResult("id").forget()
    assert app.AsyncResult("id").state == states.PENDING


def test_a_success_stays(app: Celery) -> None:
    app.backend.store_result("id", 1, states.SUCCESS)
    app.backend.store_result("id", KeyError("late"), states.FAILURE)
    assert app.AsyncResult("id").get(timeout=WAIT_S) == 1


def test_a_result_that_is_too_large_fails_by_its_size(app: Celery, database: str) -> None:
    most = int(_sql(database, "SELECT @@max_allowed_packet")[0][0])
    with pytest.raises(BackendStoreError, match="max_allowed_packet"):
        app.backend.store_result("id", "x" * most, states.SUCCESS)


def test_results_expire_failures_by_their_own_time(app: Celery, database: str) -> None:
    app.conf.update(result_expires=3600, result_failure_expires=60)
    app.backend.store_result("good", 1, states.SUCCESS)
    app.backend.store_result("bad", KeyError(), states.FAILURE)
    ttl = dict(
        _sql(database, "SELECT name, TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP(6), expires_at) FROM ems_celery_result")
    )
    assert 3500 < ttl[b"task:good"] <= 3600
    assert 50 < ttl[b"task:bad"] <= 60
    _sql(database, "UPDATE ems_celery_result SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    app.backend.cleanup()
    assert _sql(database, "SELECT COUNT(*) FROM ems_celery_result")[0] == (0,)


def test_what_never_expires_has_no_time(app: Celery, database: str) -> None:
    app.conf.update(result_expires=None)
    app.backend.store_result("id", 1, states.SUCCESS)
    assert _sql(database, "SELECT expires_at FROM ems_celery_result")[0] == (None,)


def test_a_pending_result_times_out(app: Celery) -> None:
    began = machine_s()
    with pytest.raises(TimeoutError):
        app.AsyncResult("nobody").get(timeout=0.5)
    assert machine_s() - began < 3


def test_waiting_asks_seldom_and_for_all_at_once(app: Celery) -> None:
    asked: list[int] = []
    poller = app.backend.poller
    find = poller._find
    poller._find = lambda keys: (asked.append(len(keys)), find(keys))[1]

    def wait(number: int) -> None:
        with pytest.raises(TimeoutError):
            app.AsyncResult(f"nobody {number}").get(timeout=2)  # each thread has a backend of its own

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(asked) == 50
    assert len(asked) < 150  # a pause is a tenth of the time without news


def test_an_outcome_is_noticed_within_milliseconds(app: Celery) -> None:
    delays = []
    for number in range(20):
        result = app.AsyncResult(f"id {number}")
        stored: list[float] = []

        def store(name: str = result.id, stored: list[float] = stored) -> None:
            app.backend.store_result(name, 1, states.SUCCESS)
            stored.append(time.monotonic())

        timer = threading.Timer(0.05, store)
        timer.start()
        result.get(timeout=WAIT_S)
        got = time.monotonic()
        timer.join()
        delays.append(got - stored[0])
    assert sorted(delays)[10] < 0.05


@pytest.fixture
def backend_at(database: str) -> Iterator[Any]:
    """Makes the backend of an application whose URL names a Redis."""
    with Database(database).session() as session:
        migrate(session)
    apps = []

    def make(redis_url: str) -> Any:
        apps.append(Celery(backend=f"ems+{database}?redis_url={quote(redis_url, safe='')}", set_as_current=False))
        return apps[-1].backend

    yield make
    for app in apps:
        app.backend._storage.close()


def _store_later(backend: Any, task_id: str) -> threading.Timer:
    timer = threading.Timer(0.5, backend.store_result, (task_id, 1, states.SUCCESS))
    timer.start()
    return timer


def test_redis_wakes_those_who_wait(backend_at: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_at(redis_url)
    monkeypatch.setattr(backend.poller, "_pause_s", lambda cost_s: 600.0)  # as if it never asked twice by itself
    for task_id in ("first", "second"):
        timer = _store_later(backend, task_id)
        assert backend.app.AsyncResult(task_id).get(timeout=WAIT_S) == 1
        timer.join()


def test_without_its_redis_results_are_found_by_polling(backend_at: Any) -> None:
    backend = backend_at("redis://127.0.0.1:1/0")
    timer = _store_later(backend, "id")
    assert backend.app.AsyncResult("id").get(timeout=WAIT_S) == 1
    timer.join()


def test_tasks_report_their_progress_and_their_end(app: Celery, worker: Any) -> None:
    seen: list[Any] = []

    def on_message(meta: Any) -> None:
        seen.append(meta["status"])
        if meta["status"] == "PROGRESS":
            app.progress_was_seen.set()

    result = _task(app, "report").delay()
    assert result.get(timeout=WAIT_S, on_message=on_message) == "end"
    assert "PROGRESS" in seen
    assert result.name.endswith("report")


def test_failures_come_with_their_exception_and_traceback(app: Celery, worker: Any) -> None:
    result = _task(app, "fail").delay()
    with pytest.raises(KeyError, match="why"):
        result.get(timeout=WAIT_S)
    assert "KeyError" in result.traceback
    assert result.state == states.FAILURE


@pytest.mark.parametrize("always_retry", [True, False])
def test_a_result_outlives_an_outage_of_any_length_if_celery_is_told_so(
    app: Celery, monkeypatch: pytest.MonkeyPatch, always_retry: bool
) -> None:
    backend, tries, put = app.backend, list[None](), store.put
    monkeypatch.setattr(backend, "always_retry", always_retry)
    monkeypatch.setattr("emsworker.integrations.celery.storage._TIMEOUT_S", 0.0)

    def away(session: Any, entries: Any) -> None:
        tries.append(None)
        if len(tries) <= 3:
            raise ConnectionLost("away")
        put(session, entries)

    monkeypatch.setattr(store, "put", away)
    if always_retry:
        backend.store_result("id", 7, states.SUCCESS)
        assert app.AsyncResult("id").get(timeout=WAIT_S) == 7
        assert len(tries) == 4
    else:
        with pytest.raises(StoreUnavailable):
            backend.store_result("id", 7, states.SUCCESS)


def test_every_object_of_a_task_gets_its_result(app: Celery, worker: Any) -> None:
    result = group(_task(app, "add").s(number, 1) for number in range(3)).apply_async()
    others = [[app.AsyncResult(one.id) for one in result] for _ in range(2)]
    assert [one.get(timeout=WAIT_S) for same in others for one in same] == [1, 2, 3] * 2
    assert result.get(timeout=WAIT_S) == [1, 2, 3]
    failed = group([_task(app, "fail").s()]).apply_async()
    with pytest.raises(KeyError, match="why"):
        app.AsyncResult(failed[0].id).get(timeout=WAIT_S)


def test_an_object_that_is_collected_leaves_the_others_of_its_task_waiting(app: Celery) -> None:
    kept, dropped = app.AsyncResult("id"), app.AsyncResult("id")
    seen: list[Any] = []
    for one in (kept, dropped):
        one.then(lambda result: seen.append(result.result), weak=True)
    del one, dropped
    gc.collect()
    timer = _store_later(app.backend, "id")
    assert kept.get(timeout=WAIT_S) == 1
    assert seen[0] == 1
    timer.join()


def test_ignored_results_are_not_stored(app: Celery, worker: Any, database: str) -> None:
    assert _task(app, "quiet").delay(1).get(timeout=WAIT_S) is None
    assert _task(app, "add").delay(1, 1).get(timeout=WAIT_S) == 2
    assert _sql(database, "SELECT COUNT(*) FROM ems_celery_result")[0] == (1,)


def test_groups_are_saved_restored_joined_and_deleted(app: Celery, worker: Any) -> None:
    result = group(_task(app, "add").s(number, 1) for number in range(30)).apply_async()
    result.save()
    restored = GroupResult.restore(result.id, app=app)
    assert restored.join_native(timeout=WAIT_S) == [number + 1 for number in range(30)]
    assert restored.get(timeout=WAIT_S) == [number + 1 for number in range(30)]
    restored.delete()
    assert GroupResult.restore(result.id, app=app) is None


def test_ten_thousand_results_are_joined_by_few_queries(app: Celery) -> None:
    names = [f"id {number}" for number in range(10_000)]
    results = GroupResult("g", [app.AsyncResult(name) for name in names])
    entries = [app.backend._result_entry(name, number, states.SUCCESS, None, None) for number, name in enumerate(names)]
    app.backend._storage.call(lambda session: store.put(session, entries))
    asked: list[int] = []
    poller = app.backend.poller
    find = poller._find
    poller._find = lambda keys: (asked.append(len(keys)), find(keys))[1]
    assert results.get(timeout=60) == list(range(10_000))
    assert len(asked) <= 3


# -- chords ------------------------------------------------------------------------------------------------------------


def test_chords_send_their_body_once(app: Celery, worker: Any) -> None:
    add = _task(app, "add")
    assert chord(add.s(number, number) for number in range(20))(add.s()).get(timeout=WAIT_S) == 380
    for _ in range(20):  # Celery before 5.7 takes some of them for complete when a part still runs
        nested = chord([add.s(1, 1), chain(add.s(1, 1), group(add.s(2), add.s(3)))])(_task(app, "ident").s())
        assert nested.get(timeout=WAIT_S) == [2, [4, 5]]
    steps = chain(
        add.s(1, 1), group(add.s(number) for number in range(3)), add.s(), chord([add.s(1), add.s(2)], add.s())
    )
    assert steps.delay().get(timeout=WAIT_S) == 2 * 9 + 3


def test_a_part_that_fails_fails_the_chord_once(app: Celery, worker: Any) -> None:
    add, fail, note = (_task(app, name) for name in ("add", "fail", "note"))
    body = add.s().on_error(note.s("failed"))
    result = chord([add.s(1, 1), fail.s(), add.s(2, 2), fail.s()])(body)
    with pytest.raises(ChordError, match="raised KeyError"):
        result.get(timeout=WAIT_S, follow_parents=False)
    until(lambda: app.calls, WAIT_S, "the errback is called")
    assert [call[-1] for call in app.calls] == ["failed"]
    assert add.delay(1, 1).get(timeout=WAIT_S) == 2  # the worker is alive


def test_a_body_that_cannot_be_sent_fails_the_chord(app: Celery, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    add = _task(app, "add")
    monkeypatch.setattr(type(app.backend), "_values", lambda *_: [object()])
    result = chord([add.s(1, 1), add.s(2, 2)])(add.s())
    with pytest.raises(ChordError, match="Callback error"):
        result.get(timeout=WAIT_S)


def test_a_large_chord_ends(app: Celery, worker: Any) -> None:
    add = _task(app, "add")
    assert chord(add.s(number, 0) for number in range(300))(add.s()).get(timeout=60) == sum(range(300))


# -- connections -------------------------------------------------------------------------------------------------------


def test_killed_connections_are_replaced(app: Celery, worker: Any, database: str) -> None:
    add = _task(app, "add")
    results = []
    for number in range(40):
        results.append(add.delay(number, 0))
        if number % 10 == 5:
            for (thread,) in _sql(
                database,
                "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
            ):
                _kill(database, thread)
    assert [result.get(timeout=WAIT_S) for result in results] == list(range(40))


def _kill(database: str, thread: int) -> None:
    try:
        _sql(database, f"KILL {thread}")
    except pymysql.MySQLError as error:
        if error.args[0] != 1094:  # it has gone meanwhile
            raise


def test_a_forked_child_uses_connections_of_its_own(app: Celery) -> None:
    app.backend.store_result("parent", 1, states.SUCCESS)
    child = os.fork()
    if child == 0:
        try:
            ok = app.AsyncResult("parent").get(timeout=WAIT_S) == 1
            app.backend.store_result("child", 2, states.SUCCESS)
            os._exit(0 if ok else 1)
        finally:
            os._exit(2)
    assert app.AsyncResult("child").get(timeout=WAIT_S) == 2
    assert os.waitpid(child, 0)[1] == 0
    assert app.AsyncResult("parent").get(timeout=WAIT_S) == 1


def test_a_server_that_is_away_is_an_error_that_says_so(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emsworker.integrations.celery.storage._TIMEOUT_S", 0.5)
    away = Celery(backend="ems+mysql://root@127.0.0.1:1/x")
    with pytest.raises(StoreUnavailable, match="could not be reached"):
        away.AsyncResult("id").get(timeout=5)
    assert away.backend.exception_safe_to_retry(StoreUnavailable("x"))
