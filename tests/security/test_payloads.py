"""Bodies that mean harm: they cost little, run nothing, and end as dead letters that say why."""

import json
import pickle
import subprocess
import sys
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.budget import MAX_OBJECTS
from emsworker.core.codec import MAX_HEADERS_BYTES, Decoder, decode_headers, encode_headers
from emsworker.core.errors import ContentRefused, DecodeError
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage
from emsworker.web.texts import PREVIEW_BYTES, preview
from tests.process.stream import Stream, open_stream
from tests.security.bombs import BOMBS, json_of_objects, zlib_of_objects
from tests.support.memory import MOST_DECODED, MOST_REFUSED, growth, peaks
from tests.support.servers import TestServers, chosen_flavors
from tests.support.waiting import until

_DEEP = 100_000
_ZLIB = "application/x-gzip"
_LIMIT = 16 << 20
_MEASURE = """
import resource, sys, time
from emsworker.core.codec import Decoder
from emsworker.core.errors import DecodeError
import kombu.compression, kombu.serialization
raw, decoder = sys.stdin.buffer.read(), Decoder(("json",))
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    decoder.decode(raw, {"content-type": "application/json", "compression": sys.argv[1]})
except DecodeError as error:
    print(error)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown, time.process_time() - began)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_costs_bounded_memory_and_time(name: str) -> None:
    compression, make = BOMBS[name]
    raw = make()
    assert len(raw) < 11 << 20
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, compression], input=raw, capture_output=True, timeout=60, check=True
    )
    said, cost = done.stdout.decode().splitlines()
    expected = (
        "not valid application/x-lzma: Memory usage limit" if "dictionary" in name else f"more than {_LIMIT} bytes"
    )
    assert expected in said
    grown_kib, seconds = map(float, cost.split())
    assert grown_kib < 3 * _LIMIT >> 10, f"{grown_kib / 1024:.0f} MiB"
    assert seconds < 10


def _many_objects(kind: str) -> tuple[bytes, dict[str, str]]:
    if kind == "plain json":
        return json_of_objects(1_300_000), {}
    if kind == "msgpack":
        return b"\xdd" + (3_000_000).to_bytes(4, "big") + b"\x80" * 3_000_000, {"content-type": "application/x-msgpack"}
    if kind == "msgpack headers":
        return (b"\xdd" + (30_000).to_bytes(4, "big")) * 500 + b"\x80" * 30_000, {
            "content-type": "application/x-msgpack"
        }
    if kind == "yaml":
        return json_of_objects(200_000), {"content-type": "application/x-yaml"}
    return zlib_of_objects(22_000_000), {"compression": "application/x-gzip"}


@pytest.mark.parametrize("kind", ["plain json", "zlib json", "msgpack", "msgpack headers", "yaml"])
def test_a_body_of_too_many_objects_is_refused_before_one_is_made(kind: str) -> None:
    raw, headers = _many_objects(kind)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match="objects"):
            Decoder(("json", "msgpack", "yaml")).decode(raw, headers)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_ordinary_json_of_ten_megabytes_is_read() -> None:
    rows = [
        {"id": n, "name": f"user {n}", "score": n / 7, "tags": ["a", "b"], "at": "2026-11-25"} for n in range(110_000)
    ]
    raw = json.dumps(rows).encode()
    assert len(raw) > 9_000_000 and Decoder().decode(raw, {}) == rows


_NESTED = {
    "json": (b"[" * _DEEP + b"]" * _DEEP, "application/json"),
    "json objects": (b'{"a":' * _DEEP + b"1" + b"}" * _DEEP, "application/json"),
    "json types": (b'{"__type__":"x","__value__":' * _DEEP + b"1" + b"}" * _DEEP, "application/json"),
    "msgpack": (b"\x91" * _DEEP + b"\xc0", "application/x-msgpack"),
    "yaml": (b"[" * _DEEP, "application/x-yaml"),
}


@pytest.mark.parametrize("name", _NESTED)
def test_deep_nesting_is_an_error_of_ours(name: str) -> None:
    raw, content_type = _NESTED[name]
    began = time.process_time()
    with pytest.raises(DecodeError, match="not valid"):
        Decoder(("json", "msgpack", "yaml")).decode(raw, {"content-type": content_type})
    assert time.process_time() - began < 10


def test_deep_or_long_headers_are_errors_of_ours() -> None:
    for block in (b"[" * _DEEP, b'{"a":' * _DEEP, b'{"a":"' + b"x" * MAX_HEADERS_BYTES + b'"}', b"\xff", b'{"a":1}'):
        with pytest.raises(DecodeError, match="headers"):
            decode_headers(block)


_LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "text", [_LAUGHS, "&a [*a]", "&a {b: *a}", f"- &a {'x' * 1000}\n" + "- *a\n" * 1000], ids=lambda text: text[:12]
)
def test_aliases_that_repeat_too_much_are_refused(text: str) -> None:
    with pytest.raises(DecodeError, match="aliases"):
        Decoder(("yaml",)).decode(text.encode(), {"content-type": "application/x-yaml"})


@pytest.mark.parametrize(
    "text", ["?", "-", "[]", "{a}", "a: &x 1\nb: *x\n", "- &x [1, 2]\n- *x\n", "'x'", '"\\x41"', ""]
)
def test_yaml_without_such_aliases_is_read(text: str) -> None:
    Decoder(("yaml",)).decode(text.encode(), {"content-type": "application/x-yaml"})


@pytest.mark.parametrize("encoding", ["zlib", "bz2_codec", "hex", "idna", "punycode", "rot13", "unicode_escape", "\0"])
def test_an_encoding_that_unpacks_is_refused(encoding: str) -> None:
    with pytest.raises(ContentRefused, match="encoding"):
        Decoder(("application/x-own",)).decode(
            b"x", {"content-type": "application/x-own", "content-encoding": encoding}
        )


class _Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def stream(servers: TestServers, tmp_path: Path) -> Any:
    with open_stream(servers.database(chosen_flavors()[0]), tmp_path) as stream:
        yield stream


def _smuggle(stream: Stream, raw: bytes, headers: dict[str, str]) -> None:
    """Send what the library refuses to send, as anybody may write it by SQL."""
    broker = stream.app.streams
    assert isinstance(broker, MysqlBroker)
    message = NewMessage(new_uid(), None, None, encode_headers(headers), raw)
    broker.producer.send_together([(broker.topic("acts"), message)])


def test_a_worker_buries_them_with_the_reason_and_goes_on(stream: Stream, tmp_path: Path) -> None:
    """Real messages, as a hostile producer writes them: with headers of its own choice."""
    marks = [tmp_path / "pickled", tmp_path / "from-yaml", tmp_path / "packed"]
    pickled = "application/x-python-serialize"
    zlib_type, make = BOMBS["zstd"]
    harm: list[tuple[bytes, dict[str, str], str]] = [
        (pickle.dumps(_Harm(marks[0])), {"content-type": pickled, "content-encoding": "binary"}, "is not accepted"),
        (pickle.dumps(_Harm(marks[0])), {"content-type": "pickle"}, "is not accepted"),
        (
            f"!!python/object/apply:os.mknod ['{marks[1]}']".encode(),
            {"content-type": "application/x-yaml"},
            "could not determine a constructor",
        ),
        (_LAUGHS.encode(), {"content-type": "application/x-yaml"}, "aliases repeat too much"),
        (make()[: 3 << 20], {"compression": zlib_type}, "unpacks to more than 1000000 bytes"),
        (b"[" * _DEEP, {}, "not valid json"),
        (b"\x91" * _DEEP, {"content-type": "application/x-msgpack"}, "not valid application/x-msgpack"),
        (b"\xff\xfe", {"content-type": "text/plain"}, "not valid text"),
    ]
    stream.app.send("acts", {"n": 0})
    for raw, headers, _ in harm:
        _smuggle(stream, raw, headers)
    stream.app.send("acts", {"n": 1})
    worker = stream.worker(
        topics=["acts"], groups=["a"], settings={"accept": "json,yaml,msgpack", "max_decoded_bytes": 1_000_000}
    )
    until(lambda: len(stream.rows("SELECT * FROM ems_dead")) == len(harm), 40, "all of them are dead")
    stream.wait_ended([0, 1], group="a")
    dead = stream.rows("SELECT attempts, reason FROM ems_dead ORDER BY `offset`")
    for (attempts, reason), (_, _, expected) in zip(dead, harm, strict=True):
        assert attempts == 1 and expected in reason and len(reason) < 1000
    assert not any(mark.exists() for mark in marks), "nothing was executed"
    assert worker.stop() == 0


@pytest.mark.parametrize("count", [2, 100])
def test_bombs_cost_a_worker_bounded_memory_and_no_attempt(stream: Stream, count: int) -> None:
    """Two of them once took 3.7 GB, and the worker was killed for being frozen."""
    bomb = zlib_of_objects(22_000_000)
    assert len(bomb) < 80 << 10
    worker = stream.worker(topics=["acts"], groups=["a"], settings={"batch": 5})
    before = peaks(worker.children())
    for _ in range(count):
        _smuggle(stream, bomb, {"compression": _ZLIB})
    stream.app.send("acts", {"n": 1})
    stream.wait_ended([1], group="a", timeout_s=20)
    assert worker.children() == sorted(before), "no process was replaced"
    assert growth(before) < MOST_REFUSED
    until(lambda: len(stream.rows("SELECT 1 FROM ems_dead")) == count, 20, "all are dead letters")
    dead = set(stream.rows("SELECT attempts, reason FROM ems_dead"))
    assert dead == {(1, f"the body has more than {MAX_OBJECTS} objects (max_decoded_objects)")}
    assert worker.stop() == 0


def test_bodies_at_the_limit_cost_what_the_limit_allows(stream: Stream) -> None:
    lists = b"[" + b",".join([b"[]"] * (MAX_OBJECTS // 2 - 10)) + b"]"
    worker = stream.worker(topics=["acts"], groups=["a"])
    before = peaks(worker.children())
    for number in range(5):
        _smuggle(stream, zlib.compress(b'{"n": %d, "lists": %s}' % (number, lists), 1), {"compression": _ZLIB})
    stream.wait_ended(range(5), group="a", timeout_s=40)
    assert 1 << 26 < growth(before) < MOST_DECODED
    assert worker.children() == sorted(before) and worker.stop() == 0


def test_a_page_indents_no_more_of_a_body_than_it_shows() -> None:
    body = json.loads("[" + ",".join(["[" * 300 + "]" * 300] * 1000) + "]")
    tracemalloc.start()
    try:
        text, cut = preview(body)
        assert cut and len(text) == PREVIEW_BYTES and tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
    assert preview({"a": ["é"]}) == ('{\n  "a": [\n    "é"\n  ]\n}', False)
