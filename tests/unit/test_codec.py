"""Bodies and headers to bytes and back."""

import json
import lzma
import math
import pickle
import uuid
import zlib
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import kombu.serialization
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker import Ems
from emsworker.core.budget import Budget
from emsworker.core.codec import (
    COMPRESSIONS,
    Decoder,
    check_serializers,
    decode_headers,
    encode_body,
    encode_headers,
    encode_json,
)
from emsworker.core.errors import ConfigError, ContentRefused, DecodeError, EncodeError, MessageTooLarge

ALL = Decoder(("json", "msgpack", "yaml", "pickle"))
_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: not isinstance(value, str))


def there_and_back(body: Any, serializer: str = "json", compression: str | None = None) -> Any:
    raw, headers = encode_body(body, serializer, compression)
    return ALL.decode(raw, decode_headers(encode_headers(headers)))


@given(_PLAIN)
def test_json_round_trip(body: Any) -> None:
    assert there_and_back(body) == body


@pytest.mark.parametrize("compression", COMPRESSIONS)
@given(body=st.binary(max_size=2000))
def test_compression_round_trip(compression: str, body: bytes) -> None:
    assert there_and_back(body, compression=compression) == body


@pytest.mark.parametrize("serializer", ["msgpack", "yaml", "pickle"])
def test_other_serializers_round_trip(serializer: str) -> None:
    body = {"n": 1, "list": [1.5, None, True], "text": "é", "nested": {"a": ["b"]}}
    assert there_and_back(body, serializer) == body
    assert there_and_back(body, serializer, "zlib") == body


def test_json_special_types() -> None:
    body = {
        "at": datetime(2026, 11, 20, 12, 0, 0, 5, tzinfo=UTC),
        "day": date(2026, 11, 20),
        "time": time(1, 2, 3),
        "sum": Decimal("1.10"),
        "id": uuid.UUID(int=7),
        "raw": b"\x00\xff",
        "nested": [{"at": datetime(2026, 1, 1)}],
    }
    assert there_and_back(body) == body


def test_bytes_and_text_are_kept_as_they_are() -> None:
    for body in (b"\x00\xff", "é\U0001f600", "", b""):
        raw, _ = encode_body(body)
        assert raw == (body if isinstance(body, bytes) else body.encode())
        assert there_and_back(body) == body


def test_plain_json_needs_no_headers() -> None:
    assert encode_body({"a": 1}) == (b'{"a":1}', {})


@pytest.mark.parametrize("body", [object(), {1, 2, object()}, {("a",): 1}, lambda: None])
def test_what_cannot_be_serialized_is_an_error_of_ours(body: Any) -> None:
    with pytest.raises(EncodeError, match="cannot be serialized as json"):
        encode_json(body)


def test_circles_and_depth_are_errors_of_ours() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for body in (circle, deep):
        with pytest.raises(EncodeError):
            encode_json(body)
    with pytest.raises(EncodeError, match="UTF-8"):
        encode_body("\ud800")
    with pytest.raises(EncodeError, match="not known"):
        encode_body({}, "smoke-signals")
    with pytest.raises(EncodeError, match="not known"):
        encode_body({}, "json", "rar")
    with pytest.raises(EncodeError, match="msgpack"):
        encode_body({"a": object()}, "msgpack")


class _Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("it was executed",))


def test_pickle_is_refused_unless_it_is_named() -> None:
    raw = pickle.dumps(_Bomb())
    headers = {"content-type": "application/x-python-serialize", "content-encoding": "binary"}
    for accept in (("json",), ("json", "msgpack", "yaml"), ()):
        with pytest.raises(ContentRefused, match="python-serialize"):
            Decoder(accept).decode(raw, headers)
    body, pickle_headers = encode_body({"a": {1}}, "pickle")
    assert Decoder(("pickle",)).decode(body, pickle_headers) == {"a": {1}}
    with pytest.raises(ContentRefused):
        Decoder(("pickle",)).decode(b"{}", {})


def test_yaml_never_builds_objects() -> None:
    with pytest.raises(DecodeError):
        ALL.decode(b"!!python/object/apply:os.getpid []", {"content-type": "application/x-yaml"})


@pytest.mark.parametrize("content_type", ["", "text/html", "application/x-unknown", "APPLICATION/JSON"])
def test_unknown_content_is_refused(content_type: str) -> None:
    with pytest.raises(ContentRefused):
        Decoder().decode(b"{}", {"content-type": content_type})
    with pytest.raises(ContentRefused, match="compression"):
        Decoder().decode(b"{}", {"compression": "application/x-rar"})


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_bomb_is_bounded(compression: str) -> None:
    raw, headers = encode_body(bytes(20 << 20), compression=compression, budget=Budget(20 << 20))
    assert len(raw) < 1 << 20
    with pytest.raises(DecodeError, match="more than 1000000 bytes"):
        Decoder(budget=Budget(1_000_000)).decode(raw, headers)
    exact, headers = encode_body(bytes(1000), compression=compression)
    assert Decoder(budget=Budget(1000)).decode(exact, headers) == bytes(1000)
    with pytest.raises(DecodeError):
        Decoder(budget=Budget(999)).decode(exact, headers)


@pytest.mark.parametrize(
    ("body", "options", "setting"),
    [
        ([{}] * 60, {}, "max_decoded_objects"),
        ([{}] * 60, {"compression": "zlib"}, "max_decoded_objects"),
        ([0] * 200, {"serializer": "msgpack"}, "max_decoded_objects"),
        ([0] * 10, {"serializer": "yaml"}, "max_decoded_objects"),
        ("x" * 1001, {"compression": "zstd"}, "max_decoded_bytes"),
        (bytes(1001), {"compression": "lzma"}, "max_decoded_bytes"),
        ({"n": "x" * 2000}, {"serializer": "yaml"}, "max_decoded_bytes"),
    ],
)
def test_what_receivers_would_refuse_is_not_sent(body: Any, options: dict[str, Any], setting: str) -> None:
    budget = Budget(1000, 100)
    with pytest.raises(MessageTooLarge, match=rf"{setting}.*nothing was sent"):
        encode_body(body, **options, budget=budget)
    raw, headers = encode_body(body, **options)
    with pytest.raises(DecodeError, match=setting):
        Decoder(("json", "msgpack", "yaml"), budget).decode(raw, headers)


@given(_PLAIN, st.sampled_from(["json", "msgpack", "yaml"]), st.sampled_from([None, "zlib"]))
def test_what_is_sent_is_within_the_budget_of_receivers(body: Any, serializer: str, compression: str | None) -> None:
    budget = Budget(200, 60)
    try:
        raw, headers = encode_body(body, serializer, compression, budget=budget)
    except MessageTooLarge:
        return
    assert Decoder(("json", "msgpack", "yaml"), budget).decode(raw, headers) == body


def test_a_small_body_cannot_ask_for_gigabytes_of_memory() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 30}]
    raw = lzma.compress(b"x", format=lzma.FORMAT_XZ, filters=filters)
    with pytest.raises(DecodeError, match="lzma"):
        Decoder().decode(raw, {"content-type": "application/data", "compression": "application/x-lzma"})


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_damaged_compressed_body_is_never_a_shorter_one(compression: str) -> None:
    body = bytes(range(256)) * 20
    raw, headers = encode_body(body, compression=compression)
    for damaged in (raw[:-1], raw[: len(raw) // 2], raw[:3], b"", b"nonsense", raw + b"x"):
        with pytest.raises(DecodeError, match="not valid"):
            Decoder().decode(damaged, headers)


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"\xff", b"nonsense", b"[" * 100_000,
        b'{"__type__":"uuid","__value__":5}', b'{"__type__":"uuid","__value__":{"hex":5}}',
        b'{"__type__":"decimal","__value__":"x"}', b'{"__type__":"datetime","__value__":[]}',
        b'{"__type__":"bytes","__value__":1}', b'{"__type__":"base64","__value__":"A"}',
        b'{"__type__":[],"__value__":1}', b'{"__type__":"unheard-of","__value__":1}',
    ],
)  # fmt: skip
def test_a_damaged_body_is_an_error_of_ours(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        Decoder().decode(raw, {})


@given(st.binary(max_size=200), st.sampled_from(["json", "application/x-msgpack", "application/x-yaml", "text/plain"]))
def test_no_body_makes_the_decoder_raise_anything_else(raw: bytes, content_type: str) -> None:
    headers = {} if content_type == "json" else {"content-type": content_type}
    try:
        ALL.decode(raw, headers)
    except DecodeError as error:
        assert str(error)


@given(st.dictionaries(st.text(), st.text()))
def test_headers_round_trip(headers: dict[str, str]) -> None:
    assert dict(decode_headers(encode_headers(headers))) == headers


@pytest.mark.parametrize(
    "raw", [b"x", b"[]", b"7", b'"x"', b'{"a":1}', b'{"content-type":["x"]}', b"\xff", b"[" * 100_000]
)
def test_damaged_headers_are_an_error_of_ours(raw: bytes) -> None:
    with pytest.raises(DecodeError, match="headers"):
        decode_headers(raw)


@pytest.mark.parametrize("headers", [{"a": 1}, {1: "a"}, {"a": None}, {"a": b"x"}])
def test_headers_must_be_text(headers: Any) -> None:
    with pytest.raises(EncodeError, match="must be str"):
        encode_headers(headers)


def test_decoded_headers_are_read_only_because_messages_share_them() -> None:
    headers: Any = decode_headers(b'{"a":"b"}')
    with pytest.raises(TypeError):
        headers["a"] = "c"


def test_nan_and_infinity_are_refused_as_json_and_read_from_others() -> None:
    for number in (math.nan, math.inf, -math.inf):
        with pytest.raises(EncodeError, match="no such number"):
            encode_body([number])
    assert math.isnan(Decoder().decode(b"[NaN]", {})[0])
    body, headers = encode_body([math.inf], "msgpack")
    assert Decoder(("msgpack",)).decode(body, headers) == [math.inf]


def test_the_short_way_writes_what_kombu_reads() -> None:
    from kombu.utils.json import loads

    body = {"at": datetime(2026, 1, 2), "d": Decimal("1.5"), "n": [1, "x"]}
    assert loads(encode_json(body)) == body
    assert json.loads(zlib.decompress(encode_body({"a": 1}, compression="zlib")[0])) == {"a": 1}


def test_what_is_encoded_is_what_the_standard_encoder_writes() -> None:
    bodies = [{"a": [1, 2.5, -0.0, None, True], "é\u2028": {}}, [], "", 7, 1e300, {1: 2, None: 3}, ("x",)]
    for body in bodies:
        plain = json.dumps(body, separators=(",", ":"))
        assert encode_json(body).decode() == plain
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(EncodeError, match="cannot be serialized as json"):
        encode_json(loop)


def test_a_serializer_that_nobody_knows_is_refused_and_one_that_the_app_registers_is_not() -> None:
    known = ("json", "application/json", "text/plain", "application/x-yaml", "pickle")
    check_serializers("json", known)
    with pytest.raises(ConfigError) as caught:
        check_serializers("application/json", ("json", "ours", "application/x-ours"))
    assert [(one.name, one.value) for one in caught.value.problems] == [
        ("serializer", "'application/json'"),
        ("accept", "'ours'"),
        ("accept", "'application/x-ours'"),
    ]
    kombu.serialization.register("ours", str, str, "application/x-ours")
    try:
        check_serializers("ours", ("ours", "application/x-ours"))
    finally:
        kombu.serialization.unregister("ours")
    with pytest.raises(ConfigError, match="accept = 'foo'"):
        _ = Ems("t", url="mysql://x:y@127.0.0.1:1/z", accept=("foo",)).stream.decoder
