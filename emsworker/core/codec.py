"""Encoding and decoding of bodies: kombu's serializers and compressions behind an accept list.

JSON, the default, takes a fast path with kombu's own encoder rules (dates, decimals, uuids), because kombu's general
path costs 7 us to dump and 6 us to load, and importing kombu costs 150 ms. Everything else uses kombu's registries.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from types import MappingProxyType
from typing import Any

from emsworker.core.budget import JSON_TYPE, MSGPACK_TYPE, YAML_TYPE, Budget, count_marks
from emsworker.core.errors import ConfigError, ContentRefused, DecodeError, EncodeError, Problem, text_of
from emsworker.core.extras import MODULES, hint_if_missing
from emsworker.core.process.forks import fork_blocked

CONTENT_TYPE, CONTENT_ENCODING, COMPRESSION = "content-type", "content-encoding", "compression"
LARGE_TYPE, LARGE_MARK = "application/vnd.ems.large", b'{"ems-large":"'  # of a reference, see core.large
MAX_HEADERS_BYTES = 1 << 20  # headers are read with every batch, and filters evaluate them
RAW_TYPES = frozenset({"application/data", "text/plain"})
SERIALIZERS = ("json", "msgpack", "yaml", "pickle")
COMPRESSIONS = ("zlib", "bzip2", "lzma", "zstd")
_TYPE_NAMES = {
    JSON_TYPE: "json",
    MSGPACK_TYPE: "msgpack",
    YAML_TYPE: "yaml",
    "application/x-python-serialize": "pickle",
}


def _encode_special(value: Any) -> Any:
    with fork_blocked:
        from kombu.utils.json import JSONEncoder

    return JSONEncoder().default(value)


def _decode_special(value: dict[str, Any]) -> Any:
    with fork_blocked:
        from kombu.utils.json import object_hook

    return object_hook(value)


def _json_encoder() -> Callable[[Any], str]:
    """Return the standard encoder; its C part, if there is one, is made once instead of per body: half of the time.

    A body that contains itself then ends in a RecursionError, because the markers of circular references are per body.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder(default=_encode_special, separators=(",", ":"), allow_nan=False).encode
    # The last argument refuses nan and infinity, which are not JSON: other parsers would reject the body.
    to_chunks = make(None, _encode_special, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False)
    return lambda body: "".join(to_chunks(body, 0))


_JSON_ENCODE = _json_encoder()
_JSON_DECODE = json.JSONDecoder().decode
_JSON_DECODE_SPECIAL = json.JSONDecoder(object_hook=_decode_special).decode


def encode_body(
    body: Any,
    serializer: str = "json",
    compression: str | None = None,
    *,
    names: Sequence[str] = (),
    budget: Budget = Budget(),  # noqa: B008 - frozen
) -> tuple[bytes, dict[str, str]]:
    """Serialize a body.

    Args:
        body: ``bytes`` and ``str`` are kept as they are, anything else goes through ``serializer``.
        serializer: ``json``, ``msgpack``, ``yaml``, ``pickle``, or a name registered with kombu.
        compression: ``zlib``, ``bzip2``, ``lzma``, ``zstd``, or none.
        names: names of the parts of the body, for error messages: :data:`CALL` for a call of a task.
        budget: limits of what receivers make of it.

    Returns:
        the bytes, and the headers that say how to decode them (none for plain JSON).

    Raises:
        EncodeError: the body cannot be serialized, or the serializer or compression is not installed.
        MessageTooLarge: it exceeds the budget.
    """
    raw, headers = _serialize(body, serializer, names)
    budget.check_sent(raw, headers.get(CONTENT_TYPE, JSON_TYPE), is_compressed=compression is not None)
    if compression is None:
        return raw, headers
    with fork_blocked:
        import kombu.compression

    try:
        raw, content_type = kombu.compression.compress(raw, compression)
    except (KeyError, TypeError):
        content_type = None
    if content_type not in _DECOMPRESSORS:  # kombu may know more than our decompressors, which limit the unpacked size
        why = hint_if_missing(compression) or f"it is not known here; known are {', '.join(COMPRESSIONS)}"
        raise EncodeError(f"compression {compression!r}: {why}")
    return raw, {**headers, COMPRESSION: content_type}


def _serialize(body: Any, serializer: str, names: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    if isinstance(body, bytes):
        return body, {CONTENT_TYPE: "application/data", CONTENT_ENCODING: "binary"}
    if isinstance(body, str):
        try:
            return body.encode(), {CONTENT_TYPE: "text/plain"}
        except UnicodeEncodeError as error:
            raise EncodeError(f"the body has no UTF-8 form: {text_of(error)}") from error
    if serializer == "json":
        return encode_json(body, names), {}
    return _serialize_by_kombu(body, serializer)


CALL = ("args", "kwargs")
"""Names of the parts of a body that is a call of a task."""


def encode_json(body: Any, names: Sequence[str] = ()) -> bytes:
    """Encode a body as compact JSON by kombu's rules for dates, decimals, uuids and bytes.

    Raises:
        EncodeError: a part of the body has no JSON form, such as ``nan``; the text names the part.
    """
    try:
        return _JSON_ENCODE(body).encode()
    except (TypeError, ValueError) as error:
        raise _where_it_fails(body, names, error) from error
    except RecursionError as error:
        raise EncodeError("the body cannot be serialized as json: it is nested too deeply, or holds itself") from error


def _where_it_fails(body: Any, names: Sequence[str], error: Exception) -> EncodeError:
    """Return an error about the first part that cannot be encoded, in the encoder's order."""
    todo: list[tuple[tuple[Any, ...], Any]] = [((), body)]
    while todo:
        path, part = todo.pop()
        inner: list[tuple[Any, Any]] = []
        if isinstance(part, dict):
            for key in part:
                if not isinstance(key, str | int | float | bool | None) or key != key or key in _NO_NUMBERS:
                    return _no_json(path, names, f"it has the key {key!r:.100}")
            inner = list(part.items())
        elif isinstance(part, list | tuple):
            inner = list(enumerate(part))
        else:
            try:
                _JSON_ENCODE(part)
            except (TypeError, ValueError, RecursionError) as found:
                is_float = isinstance(part, float)
                return _no_json(
                    path,
                    names,
                    f"it is {float.__repr__(part)}, and JSON has no such number" if is_float else str(found),
                )
        todo += [((*path, step), value) for step, value in reversed(inner)]
    return _no_json((), (), str(error))


def _no_json(path: tuple[Any, ...], names: Sequence[str], why: str) -> EncodeError:
    return EncodeError(f"{_path_text(path, names)} cannot be serialized as json: {why}")


_NO_NUMBERS = (float("inf"), float("-inf"))


def _path_text(path: tuple[Any, ...], names: Sequence[str]) -> str:
    """Format a path into a body as a Python expression; the first step may have a name."""
    name, steps = (names[path[0]], path[1:]) if names and path else ("body" if path else "the body", path)
    return name + "".join(f"[{step!r:.100}]" for step in steps)


def _serialize_by_kombu(body: Any, serializer: str) -> tuple[bytes, dict[str, str]]:
    with fork_blocked:
        import kombu.exceptions
        import kombu.serialization

    try:
        content_type, encoding, raw = kombu.serialization.dumps(body, serializer=serializer)
    except kombu.exceptions.SerializerNotInstalled:
        why = hint_if_missing(serializer) or f"it is not known here; known are {', '.join(SERIALIZERS)}"
        raise EncodeError(f"serializer {serializer!r}: {why}") from None
    except Exception as error:  # each serializer raises errors of its own
        raise EncodeError(f"the body cannot be serialized as {serializer}: {text_of(error)}") from error
    payload = raw.encode() if isinstance(raw, str) else raw
    return payload, {CONTENT_TYPE: content_type, CONTENT_ENCODING: encoding}


def decode_headers(raw: bytes) -> Mapping[str, str]:
    """Parse a stored header block; equal blocks, which messages of a task often have, are parsed once.

    Raises:
        DecodeError: the block is not a JSON object of strings, or exceeds the size limit.
    """
    if not raw:
        return _NO_HEADERS
    if len(raw) > MAX_HEADERS_BYTES:
        raise DecodeError(f"the headers take {len(raw)} bytes, at most {MAX_HEADERS_BYTES} are read")
    return _read_headers_once(raw) if len(raw) <= _REMEMBERED_BYTES else _read_headers(raw)


def _read_headers(raw: bytes) -> Mapping[str, str]:
    try:
        headers = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"the headers are not JSON: {error}") from error
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise DecodeError("the headers are not JSON object of strings")
    return MappingProxyType(headers)


_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_REMEMBERED_BYTES = 1024  # longer blocks are not cached; the cache holds 1024 blocks
_read_headers_once = lru_cache(maxsize=1024)(_read_headers)


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers for storage; no headers give an empty block.

    Raises:
        EncodeError: a name or value is not a string, or the headers are too long.
    """
    if not headers:
        return b""
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise EncodeError(f"header {name!r} = {value!r}: names and values must be str")
    block = _JSON_ENCODE(dict(headers)).encode()
    if block.count(b"{") > 1 or b"[" in block:  # escaped, so that counting brackets gives the nesting depth
        block = b"{" + block[1:].replace(b"{", rb"\u007b").replace(b"[", rb"\u005b")
    if len(block) > MAX_HEADERS_BYTES:
        raise EncodeError(f"the headers take {len(block)} bytes, at most {MAX_HEADERS_BYTES}; put it into the body")
    return block


def check_serializers(serializer: str, accept: Sequence[str]) -> None:
    """Check that the serializers of the settings are known here, once the app that may register some is loaded.

    Raises:
        ConfigError: names every one that is not.
    """
    problems = [
        Problem(name, repr(value), f"there is no such serializer here; known are {', '.join(SERIALIZERS)}")
        for name, value in (("serializer", serializer), *(("accept", one) for one in accept))
        if not _is_known(value, as_type=name == "accept")
    ]
    if problems:
        raise ConfigError(problems)


def _is_known(serializer: str, *, as_type: bool) -> bool:
    if serializer in SERIALIZERS or (as_type and serializer in (*RAW_TYPES, *_TYPE_NAMES)):
        return True
    with fork_blocked:
        from kombu.serialization import registry

    return serializer in registry.name_to_type or (as_type and serializer in registry.type_to_name)


def is_accepted(content_type: str, accept: Collection[str]) -> bool:
    """Return whether an accept list, of names or content types, has a content type; raw bytes and text always pass."""
    return content_type in RAW_TYPES or content_type in accept or _TYPE_NAMES.get(content_type) in accept


Load = Callable[[bytes, Mapping[str, str]], tuple[bytes, Mapping[str, str]]]


class Decoder:
    """Decoder of bodies whose content type is accepted.

    Args:
        accept: names (``json``, ``msgpack``, ``yaml``, ``pickle``) or content types. Raw bytes and text are always
            accepted; pickle only if it is named here.
        budget: limits of what a body becomes.
        load: returns a large body and the headers that it is decoded by, from its reference and the message's headers.
    """

    def __init__(
        self,
        accept: tuple[str, ...] = ("json",),
        budget: Budget = Budget(),  # noqa: B008 - frozen
        load: Load | None = None,
    ) -> None:
        self._load = load
        self._accept = frozenset(accept)
        self._json = "json" in self._accept or JSON_TYPE in self._accept
        self._budget = budget

    def decode(self, raw: bytes, headers: Mapping[str, str]) -> Any:
        """Turn stored bytes into the object that was sent.

        Raises:
            ContentRefused: the content type or compression is not accepted; nothing was decoded.
            DecodeError: the bytes are not what the headers say, or exceed the budget; nothing was decoded then.
        """
        if self._json and CONTENT_TYPE not in headers and COMPRESSION not in headers:
            self._budget.check(raw, JSON_TYPE)
            return _decode_json(raw)
        content_type = headers.get(CONTENT_TYPE, JSON_TYPE)
        if content_type == LARGE_TYPE and self._load is not None:
            raw, headers = self._load(raw, headers)
            content_type = headers.get(CONTENT_TYPE, JSON_TYPE)
        self.check(content_type)
        if COMPRESSION in headers:
            raw = unpack(raw, headers[COMPRESSION], content_type, self._budget)
        self._budget.check(raw, content_type)
        return _deserialize(raw, content_type, headers.get(CONTENT_ENCODING, "utf-8"))

    def check(self, content_type: str) -> None:
        """Raise ContentRefused if a content type is not accepted."""
        if is_accepted(content_type, self._accept):
            return
        raise ContentRefused(
            f"content type {content_type!r} is not accepted (accept = {', '.join(sorted(self._accept))}); "
            "name it in the setting 'accept' if you trust every producer"
        )


def _decode_json(raw: bytes) -> Any:
    try:
        text = raw.decode()
        return _JSON_DECODE_SPECIAL(text) if '"__type__"' in text else _JSON_DECODE(text)
    except Exception as error:  # kombu's decoders of dates, uuids and so on raise any error on a damaged value
        raise DecodeError(f"the body is not valid json: {error}") from error


def _deserialize(raw: bytes, content_type: str, encoding: str) -> Any:
    if content_type == JSON_TYPE:
        return _decode_json(raw)
    if content_type == "application/data":
        return raw
    if content_type == "text/plain":
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"the body is not valid text: {error}") from error
    check_encoding(encoding)
    with fork_blocked:
        import kombu.serialization

    try:
        body = kombu.serialization.loads(raw, content_type, encoding, accept={content_type})
    except Exception as error:  # each serializer raises errors of its own
        raise DecodeError(f"the body is not valid {content_type}: {error}") from error
    return body


def check_encoding(encoding: str) -> None:
    """Refuse an encoding that is not one of plain text: some of Python's codecs decompress.

    Raises:
        ContentRefused: it is not known here.
    """
    if encoding.lower() not in _ENCODINGS:
        raise ContentRefused(f"content encoding {encoding!r:.100} is not known here")


def _zstd_decompressor() -> Any:
    """Return the extra's own: kombu before 5.7 has another library, which cannot be told where to stop."""
    with fork_blocked:
        return import_module(MODULES["zstd"][0]).ZstdDecompressor()


_ENCODINGS = frozenset({"utf-8", "utf8", "us-ascii", "ascii", "ascii-8bit", "latin-1", "iso-8859-1", "binary", ""})

# A body of a few bytes may request a dictionary of gigabytes; the highest preset needs 65 MiB.
_LZMA_MEMORY_BYTES = 128 << 20
_PART_BYTES = 1 << 20
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "application/x-gzip": zlib.decompressobj,
    "application/x-bz2": bz2.BZ2Decompressor,
    "application/x-lzma": lambda: lzma.LZMADecompressor(memlimit=_LZMA_MEMORY_BYTES),
    "application/zstd": _zstd_decompressor,
}


def unpack(raw: bytes, compression: str, content_type: str, budget: Budget) -> bytes:
    """Decompress a body part by part, no further than the budget goes.

    Raises:
        ContentRefused: the compression is not known here.
        DecodeError: the body is damaged, or exceeds the budget.
    """
    if compression not in _DECOMPRESSORS:
        raise ContentRefused(f"compression {compression!r:.100} is not known here")
    if compression == "application/zstd" and (hint := hint_if_missing("zstd")):
        raise DecodeError(f"the body is compressed with zstd: {hint}")
    parts, size, objects = [], 0, 0
    for part in _parts(raw, compression):
        size += len(part)
        budget.check_bytes(size)
        if content_type == JSON_TYPE:
            objects += count_marks(part)
            budget.check_objects(objects)
        parts.append(part)
    return b"".join(parts)


def unpacked_beginning(raw: bytes, compression: str, most: int) -> bytes:
    """Decompress about ``most`` bytes, or as many as there are before the body is damaged; none if it cannot be."""
    found = b""
    try:
        for part in _parts(raw, compression):
            found += part
            if len(found) >= most:
                break
    except DecodeError:
        pass
    return found[:most]


def _parts(raw: bytes, compression: str) -> Iterator[bytes]:
    try:
        unpacking, rest = _DECOMPRESSORS[compression](), raw
        while not unpacking.eof:
            part: bytes = unpacking.decompress(rest, _PART_BYTES)
            # zlib returns what it has not read; the others keep it.
            rest = getattr(unpacking, "unconsumed_tail", b"")
            if not part and not rest and not unpacking.eof:
                break
            yield part
    except Exception as error:  # each compression raises errors of its own
        raise DecodeError(f"the body is not valid {compression}: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise DecodeError(f"the body is not valid {compression}: it is cut off, or something follows it")
