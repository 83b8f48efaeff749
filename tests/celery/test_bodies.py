"""Bodies of messages and results that mean harm: nothing is built from them, and they keep nobody from his work."""

import json
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.exceptions import ChordError
from kombu.exceptions import EncodeError

from emsworker.core.codec import encode_headers
from emsworker.core.errors import MessageTooLarge
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage
from emsworker.integrations.celery.names import queue_topic
from tests.celery.brokers import Broker
from tests.celery.kombu_program import Program
from tests.celery.project import Project
from tests.security.bombs import BOMBS, json_of_objects, zlib_of_objects
from tests.support.machine import machine_s
from tests.support.memory import MOST_REFUSED, growth, peaks
from tests.support.waiting import until

TASK = "tests.celery.projects.tasks.work"
WORK = kombu.Queue("work", routing_key="work")
_JSON, _YAML, _MSGPACK = "application/json", "application/x-yaml", "application/x-msgpack"
Rows = Callable[..., list[tuple[Any, ...]]]


def _compressed(name: str, compression: str, most: int = 3 << 20) -> tuple[bytes, str, Any, str]:
    return BOMBS[name][1]()[:most], _JSON, compression, "utf-8"


# body, content type, compression, encoding; and the reason of the dead letter
_HARM: dict[str, tuple[Callable[[], tuple[bytes, str, Any, str]], str]] = {
    "objects": (lambda: (zlib_of_objects(22_000_000), _JSON, "application/x-gzip", "utf-8"), "max_decoded_objects"),
    "alias": (lambda: (zlib_of_objects(22_000_000), _JSON, "gzip", "utf-8"), "max_decoded_objects"),
    "plain": (lambda: (json_of_objects(1_400_000), _JSON, None, "utf-8"), "max_decoded_objects"),
    "msgpack": (
        lambda: (b"\xdd" + (3_000_000).to_bytes(4, "big") + b"\x80" * 3_000_000, _MSGPACK, None, "binary"),
        "max_decoded_objects",
    ),
    "yaml": (lambda: (json_of_objects(200_000), _YAML, None, "utf-8"), "max_decoded_objects"),
    "zstd": (lambda: _compressed("zstd", "zstandard"), "max_decoded_bytes"),
    "bzip2": (lambda: _compressed("bzip2", "bzip"), "max_decoded_bytes"),
    "lzma": (lambda: _compressed("lzma", "xz"), "max_decoded_bytes"),
    "dictionary": (lambda: _compressed("lzma-dictionary", "lzma"), "Memory usage limit"),
    "encoding": (lambda: (zlib.compress(bytes(1 << 20)), _JSON, None, "zlib"), "content encoding"),
    "unknown": (lambda: (b"x", _JSON, "application/x-brotli", "utf-8"), "is not known here"),
    "no text": (lambda: (b"x", _JSON, ["zlib"], "utf-8"), "not what kombu writes"),
    "cut": (lambda: (zlib.compress(b"[1]" * 9)[:-3], _JSON, "zlib", "utf-8"), "cut off"),
}


_PLAIN = (b'["bad"]', _JSON, None, "utf-8")
_MANY = [{}] * 5_100  # a comma and a bracket each


def _smuggle(
    program: Program, topic: str, harm: tuple[bytes, str, Any, str], routing_key: str = "work", **headers: Any
) -> None:
    """Send what kombu would not, as anybody may write it by SQL."""
    body, content_type, compression, encoding = harm
    amqp = {"headers": {**headers, "compression": compression}, "properties": {}, "routing_key": routing_key}
    block = {"amqp": json.dumps(amqp), "content-type": content_type, "content-encoding": encoding}
    broker = program.channel._stream.broker
    message = NewMessage(new_uid(), None, routing_key.encode(), encode_headers(block), body)
    broker.producer.send_together([(broker.topic(topic), message)])


@pytest.mark.parametrize("name", _HARM)
def test_a_body_over_the_budget_is_a_dead_letter_at_once(
    program: Callable[..., Program], rows: Rows, name: str
) -> None:
    make, reason = _HARM[name]
    one = program()
    one.consume(WORK, accept=["json", "yaml", "msgpack"])
    _smuggle(one, queue_topic("work"), make())
    one.send(["hello"], WORK)
    assert [message.decode() for message in one.until(1)] == [["hello"]], "those behind it are delivered"
    one.got[0].ack()
    (dead,) = until(lambda: rows("SELECT attempts, error FROM ems_dead"), 30, "it is a dead letter")
    assert dead[0] == 1 and reason in dead[1], dead


def test_a_header_over_its_limit_is_a_dead_letter_at_once(program: Callable[..., Program], rows: Rows) -> None:
    one, replies = program(), kombu.Queue("replies", exclusive=True)
    one.consume(WORK, replies)
    _smuggle(one, queue_topic("work"), _PLAIN, own=_MANY)
    _smuggle(one, "amqp-bus", _PLAIN, "replies", own=_MANY)
    one.send(["hello"], WORK, headers={"own": _MANY[:4_900]})
    one.send(["hello"], replies)
    assert [message.decode() for message in one.until(2)] == [["hello"]] * 2
    (dead,) = until(lambda: rows("SELECT attempts, error FROM ems_dead"), 30, "it is a dead letter")
    assert dead[0] == 1 and "amqp has more than 10000 objects" in dead[1], dead
    with pytest.raises(MessageTooLarge, match="headers have more than 10000 objects"):
        one.send(["hello"], WORK, headers={"own": _MANY})


def test_a_single_get_passes_over_it(program: Callable[..., Program], rows: Rows) -> None:
    one = program()
    WORK(one.channel).declare()
    _smuggle(one, queue_topic("work"), _HARM["objects"][0]())
    one.send(["hello"], WORK)
    got = until(lambda: one.channel.basic_get("work", no_ack=True), 30, "the next one is there")
    assert got.decode() == ["hello"]
    one.channel.stop()
    assert [attempts for (attempts,) in rows("SELECT attempts FROM ems_dead")] == [1]


def test_a_queue_of_this_process_passes_over_it(program: Callable[..., Program]) -> None:
    one = program()
    replies = kombu.Queue("replies", exclusive=True)
    one.consume(replies)
    _smuggle(one, "amqp-bus", _HARM["objects"][0](), "replies")
    one.send("hello", replies)
    assert [message.decode() for message in one.until(1)] == ["hello"]


def test_what_a_consumer_does_not_take_is_not_parsed(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("emsworker.core.budget._count_yaml", lambda *_: pytest.fail("it was parsed"))
    one = program()
    one.consume(WORK, accept=["json"])
    _smuggle(one, queue_topic("work"), _HARM["yaml"][0]())
    until(lambda: one.deliver() or one.got, 30, "kombu refuses it by its type")
    with pytest.raises(kombu.exceptions.ContentDisallowed):
        one.got[0].decode()
    one.got[0].reject()


@pytest.mark.parametrize("compression", [None, "zlib", "gzip", "bzip2", "lzma", "xz", "zstd"])
def test_ordinary_bodies_are_unpacked_once_and_keep_their_headers(
    program: Callable[..., Program], monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    one = program()
    one.consume(WORK, accept=["json"])
    one.send({"n": [1, "ü"]}, WORK, compression=compression, headers={"own": 1})
    monkeypatch.setattr("kombu.message.decompress", lambda *_: pytest.fail("it was unpacked before"))
    (message,) = one.until(1)
    assert message.decode() == {"n": [1, "ü"]} and message.headers["own"] == 1
    assert bool(message.headers.get("compression")) is (compression is not None)
    message.requeue()
    (_, again) = one.until(2)
    assert again.decode() == {"n": [1, "ü"]}
    again.ack()


@pytest.mark.parametrize(
    ("body", "options", "setting"),
    [
        ([{}] * 1_400_000, {}, "max_decoded_objects"),
        ([{}] * 1_400_000, {"compression": "zlib"}, "max_decoded_objects"),
        ("x" * (17 << 20), {"compression": "zlib"}, "max_decoded_bytes"),
        ([0] * 2_100_000, {"serializer": "msgpack"}, "max_decoded_objects"),
        ([0] * 110_000, {"serializer": "yaml"}, "max_decoded_objects"),
        ("x" * (3 << 20), {"serializer": "yaml"}, "max_decoded_bytes"),
    ],
)
def test_a_sender_is_told_at_once(
    program: Callable[..., Program], rows: Rows, body: Any, options: dict[str, str], setting: str
) -> None:
    one = program()
    with pytest.raises(MessageTooLarge, match=rf"{setting}.*nothing was sent"):
        one.send(body, WORK, **options)
    assert rows("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == [(0,)]


def test_the_options_set_the_limits(program: Callable[..., Program]) -> None:
    small, large = program(max_decoded_objects=10), program(max_decoded_objects=3_000_000, max_decoded_bytes=20 << 20)
    with pytest.raises(MessageTooLarge, match="more than 10 objects"):
        small.send([0] * 20, WORK)
    large.consume(WORK)
    large.send([{}] * 1_400_000, WORK, compression="zlib")
    (message,) = large.until(1)
    assert len(message.decode()) == 1_400_000
    message.ack()


@pytest.mark.parametrize("count", [2, 100])
def test_bombs_cost_a_worker_bounded_memory_and_no_attempt(
    project: Project, program: Callable[..., Program], rows: Rows, count: int
) -> None:
    """Kombu decompresses and decodes them in the main process, and once took gigabytes for it."""
    worker = project.worker("-c", "1").wait_ready()
    project.run("work.delay(0)")
    project.wait_ended(1)
    before = peaks(worker.processes())
    one, bomb = program(), (zlib_of_objects(22_000_000), _JSON, "application/x-gzip", "utf-8")
    for _ in range(count):
        _smuggle(one, queue_topic("celery"), bomb, "celery", task=TASK, id=str(uuid.uuid4()))
    began = machine_s()
    project.run("work.delay(1)")
    project.wait_ended(2)
    assert machine_s() - began < 30
    assert growth(before) < MOST_REFUSED, "in the processes that were there before"
    until(lambda: rows("SELECT COUNT(*) FROM ems_dead") == [(count,)], 30, "all are dead letters")
    ((attempts, error),) = set(rows("SELECT attempts, error FROM ems_dead"))
    assert attempts == 1 and "max_decoded_objects" in error
    assert worker.stop() == 0


# -- results -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def app(broker: Broker) -> Any:
    app = Celery("results", broker=broker.url, backend=broker.url, set_as_current=False)
    app.conf.update(task_ignore_result=False, result_chord_join_timeout=20)
    yield app
    app.pool.force_close_all()
    app.backend._storage.close()
    app.close()


def _store_bomb(app: Celery, task_id: str) -> None:
    body = (
        b'{"task_id": "' + task_id.encode() + b'", "status": "SUCCESS", "result": ' + json_of_objects(1_400_000) + b"}"
    )
    app.backend.set(app.backend.get_key_for_task(task_id), body)


def test_a_result_over_the_budget_fails_who_waits_for_it_and_nobody_else(app: Celery) -> None:
    _store_bomb(app, "bomb")
    app.backend.store_result("good", 7, states.SUCCESS)
    bomb, good = app.AsyncResult("bomb"), app.AsyncResult("good")
    with pytest.raises(Exception, match="max_decoded_objects"):
        bomb.get(timeout=20)
    with pytest.raises(Exception, match="max_decoded_objects"):
        app.backend.get_result("bomb")
    both = app.ResultSet([app.AsyncResult("bomb"), good])
    assert both.join_native(timeout=20, propagate=False)[1] == 7


def test_a_compressed_result_is_unpacked_within_the_budget(app: Celery) -> None:
    base = pytest.importorskip("celery.backends.base")
    if not hasattr(base, "COMPRESSED_PAYLOAD_MAGIC"):
        pytest.skip("this Celery does not compress results")
    for packed in (base.compress_payload(b"0", "zlib").replace(zlib.compress(b"0"), zlib_of_objects(22_000_000)),
                   base.compress_payload(base.compress_payload(b"1", "zlib"), "zlib")):  # fmt: skip
        app.backend.set(app.backend.get_key_for_task("packed"), packed)
        with pytest.raises(Exception, match=r"max_decoded_objects|compressed twice"):
            app.backend.get_result("packed")
    app.conf.result_compression = "zlib"
    own = Celery("own", broker=app.conf.broker_url, backend=app.conf.result_backend, set_as_current=False)
    own.conf.result_compression = "zlib"
    own.backend.store_result("own", {"n": 1}, states.SUCCESS)
    assert app.backend.get_result("own") == {"n": 1}
    own.close()


def test_a_task_whose_result_nobody_could_read_fails(app: Celery) -> None:
    with pytest.raises(EncodeError, match=r"result is too large.*max_decoded_objects"):
        app.backend.store_result("large", [{}] * 1_400_000, states.SUCCESS)

    @app.task(shared=False)
    def many() -> Any:
        return [{}] * 1_400_000

    from celery.app.trace import build_tracer

    trace = build_tracer(many.name, many, app=app)
    trace("traced", (), {}, {"id": "traced"})
    meta = app.backend.get_task_meta("traced")
    assert meta["status"] == states.FAILURE and "max_decoded_objects" in str(meta["result"])


def test_the_options_of_the_backend_are_read(app: Celery) -> None:
    app.conf.result_backend_transport_options = {"max_decoded_objects": 5, "visibility_timeout": 3}
    with pytest.raises(EncodeError, match="more than 5 objects"):
        app.backend.store_result("id", [1, 2, 3, 4, 5, 6], states.SUCCESS)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"max_decoded_objects": 100}, "max_decoded_objects"),
        ({"max_message_bytes": 500}, "max_message_bytes"),
        ({}, ""),
    ],
    ids=["objects", "bytes", "within"],
)
@pytest.mark.parametrize("is_nested", [False, True], ids=["flat", "nested"])
def test_what_a_chord_gets_is_limited_as_a_whole(
    app: Celery, options: dict[str, int], named: str, is_nested: bool
) -> None:
    """Each part is far below the limits, and nothing is built from a fifth one."""
    app.conf.result_backend_transport_options = options
    parts = [app.AsyncResult(f"part-{number}") for number in range(5)]
    members = [app.GroupResult("inner", parts)] if is_nested else parts
    app.backend.apply_chord(("chord", members), None)
    app.backend.set_chord_size("chord", 5)
    for number, part in enumerate(parts):
        request = Context(id=part.id, group="chord", group_index=number, chord=app.signature("body", task_id="body"))
        app.backend.mark_as_done(part.id, [number] * 30, request)
    if named:
        with pytest.raises(ChordError, match=named):
            app.AsyncResult("body").get(timeout=20)
    else:
        assert app.AsyncResult("body").state == states.PENDING, "it was sent"
