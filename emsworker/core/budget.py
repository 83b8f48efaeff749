"""Limits of the memory that a received body may take, checked before anything is built from it.

A few kilobytes unpack to gigabytes, and a few megabytes of ``{},{},...`` become fifty times as much memory. So bytes
are counted while they are unpacked, and objects before they are made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from emsworker.core.errors import DecodeError, MessageTooLarge
from emsworker.core.process.forks import fork_blocked

JSON_TYPE, MSGPACK_TYPE, YAML_TYPE = "application/json", "application/x-msgpack", "application/x-yaml"
MAX_BYTES = 16 << 20
# Measured: an object, counted as below, takes 32 to 85 bytes of memory, so that the worst body takes 170 MB and 0.4 s.
# Ordinary JSON has one in 5 to 12 bytes: 10 MB of records {"k":1,"v":2} has 2.0 million, of integers 1.4 million.
MAX_OBJECTS = 2_000_000
# PyYAML takes 660 bytes and 15 us for a value, 0.7 us for a byte: 2 MiB or 100,000 values take 1.5 s.
_YAML_WEIGHT, _YAML_SHARE = 20, 8
_MAX_DEPTH = 500
_MAX_DIGITS = 4300  # as of Python's int(); YAML's numbers to the base of 60 take quadratic time


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a decoded body, or of several that are built together.

    Args:
        max_bytes: of a body after decompression.
        max_objects: of containers and values: the brackets, commas and colons of JSON, whatever MessagePack announces,
            and twenty for each value of YAML.
        names: what errors call the two: by default the settings.

    A body that is stored unpacked is limited by its topic.
    """

    max_bytes: int = MAX_BYTES
    max_objects: int = MAX_OBJECTS
    names: tuple[str, str] = ("max_decoded_bytes", "max_decoded_objects")

    def check(self, raw: bytes, content_type: str) -> None:
        """Check an unpacked body; one that is too short to have too many objects is not looked at, but for YAML.

        Raises:
            DecodeError: it has too many objects.
        """
        harmless = {YAML_TYPE: 0, MSGPACK_TYPE: min(_SHORT_MSGPACK, self.max_objects)}
        if len(raw) > harmless.get(content_type, self.max_objects):
            self.count(raw, content_type)

    def count(self, raw: bytes, content_type: str) -> int:
        """Return an upper bound of the objects of an unpacked body; 0 if nothing is known of its content type.

        Raises:
            DecodeError: it has too many.
        """
        if content_type == YAML_TYPE:
            if len(raw) > (most := max(1, self.max_bytes // _YAML_SHARE)):
                raise DecodeError(f"the body has more than {most} bytes of YAML (an eighth of {self.names[0]})")
            return _YAML_WEIGHT * _count_yaml(raw, self.max_objects // _YAML_WEIGHT or 1, self.names[1])
        if content_type == MSGPACK_TYPE:
            return _count_msgpack(raw, self.max_objects, self.names[1])
        count = count_marks(raw) if content_type == JSON_TYPE else 0
        self.check_objects(count)
        return count

    def check_sent(self, raw: bytes, content_type: str, *, is_compressed: bool) -> None:
        """Check an unpacked body before it is sent: what is refused there would be refused by every receiver.

        Args:
            is_compressed: it is sent compressed, so that its topic does not limit it.

        Raises:
            MessageTooLarge: it has too many bytes or objects; the text names the setting.
        """
        # What a serializer has just written announces no more than it has: fewer bytes are fewer objects.
        if not is_compressed and len(raw) <= self.max_objects and content_type != YAML_TYPE:
            return
        try:
            if is_compressed:
                self.check_bytes(len(raw))
            if len(raw) > self.max_objects or content_type == YAML_TYPE:
                self.check(raw, content_type)
        except DecodeError as error:
            raise MessageTooLarge(f"{error}; nothing was sent") from None

    def check_bytes(self, size: int) -> None:
        """Raise DecodeError if an unpacked body is too large."""
        if size > self.max_bytes:
            raise DecodeError(f"the body unpacks to more than {self.max_bytes} bytes ({self.names[0]})")

    def check_objects(self, count: int) -> None:
        """Raise DecodeError if there are too many objects."""
        if count > self.max_objects:
            raise _too_many(self.max_objects, self.names[1])


def _too_many(most: int, name: str) -> DecodeError:
    return DecodeError(f"the body has more than {most} objects ({name})")


def count_marks(raw: bytes) -> int:
    """Return an upper bound of the objects of JSON: all its brackets, commas and colons, those of texts included."""
    return raw.count(b"{") + raw.count(b"[") + raw.count(b",") + raw.count(b":")


# -- MessagePack -------------------------------------------------------------------------------------------------------

_SHORT_MSGPACK = 16 << 10  # so few bytes cannot announce much: the parser limits a container to the body's size
_FIXED = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8} | {0xCC + n: 1 << n for n in range(4)}
_FIXED |= {0xD0 + n: 1 << n for n in range(4)} | {0xD4 + n: 1 + (1 << n) for n in range(5)}
_SIZED = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_EXTENDED = {0xC7: ">B", 0xC8: ">H", 0xC9: ">I"}
_ARRAYS, _MAPS = {0xDC: ">H", 0xDD: ">I"}, {0xDE: ">H", 0xDF: ">I"}


def _count_msgpack(raw: bytes, most: int, name: str) -> int:
    """Count what containers announce, because a parser allocates them at once: not more steps than objects allowed."""
    at, announced, seen, end = 0, 1, 0, len(raw)
    while seen < announced and at < end:
        head = raw[at]
        at += 1
        seen += 1
        if head < 0x80 or head >= 0xE0:
            continue
        if head < 0xA0:
            announced += head & 0x0F if head & 0x10 else 2 * (head & 0x0F)
        elif head < 0xC0:
            at += head & 0x1F
            continue
        elif head in _FIXED:
            at += _FIXED[head]
            continue
        else:
            items, skipped = _long_header(raw, at, head)
            announced, at = announced + items, at + skipped
        if announced > most:
            raise _too_many(most, name)
    return announced


def _long_header(raw: bytes, at: int, head: int) -> tuple[int, int]:
    """Return how many items a header announces, and the bytes until the next header."""
    for headers, each, own in ((_SIZED, 0, 0), (_EXTENDED, 0, 1), (_ARRAYS, 1, 0), (_MAPS, 2, 0)):
        if head in headers:
            layout = struct.Struct(headers[head])
            if at + layout.size > len(raw):
                return 0, len(raw)  # cut off, which the parser says
            (length,) = layout.unpack_from(raw, at)
            return each * length, layout.size + (0 if each else length + own)
    return 0, len(raw)  # no such header, which the parser says


# -- YAML --------------------------------------------------------------------------------------------------------------


def _count_yaml(raw: bytes, most: int, name: str) -> int:
    """Count events, and what aliases repeat, before a document is built: merging aliases takes exponential time."""
    with fork_blocked:
        import yaml

    document, count = _Document(2 * len(raw) + 8), 0
    try:
        for count, event in enumerate(_events(yaml, raw)):
            if count >= most:
                raise _too_many(most * _YAML_WEIGHT, name)
            document.add(yaml, event)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DecodeError(f"the body is not valid application/x-yaml: {error}") from error
    return count


class _Document:
    """Size of a YAML document with everything that its aliases repeat.

    Args:
        allowed: the most parts and characters; one without aliases has no more of them than it has bytes.
    """

    def __init__(self, allowed: int) -> None:
        self._allowed, self._spent = allowed, 0
        self._sizes: dict[str | None, int] = {}
        self._opened: list[tuple[str | None, int]] = []

    def add(self, yaml: Any, event: Any) -> None:
        """Add the next event of the parser."""
        if isinstance(event, yaml.CollectionStartEvent):
            self._opened.append((event.anchor, self._spent))
            self._sizes[event.anchor] = self._allowed  # until it is closed: an alias in between makes it hold itself
            self._spent += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._opened.pop()
            self._sizes[anchor] = self._spent - before
        elif isinstance(event, yaml.ScalarEvent):
            _check_scalar(event.value, event.style, event.tag)
            self._sizes[event.anchor] = 1 + len(event.value)
            self._spent += 1 + len(event.value)
        elif isinstance(event, yaml.AliasEvent):
            self._spent += self._sizes.get(event.anchor, 0)  # an unknown one is the parser's error
        if self._spent > self._allowed:
            raise DecodeError("the body is not valid application/x-yaml: its aliases repeat too much")
        if len(self._opened) > _MAX_DEPTH:
            raise DecodeError(f"the body is not valid application/x-yaml: it is nested {_MAX_DEPTH} deep")


def _events(yaml: Any, raw: bytes) -> Iterator[Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    events: Iterator[Any] = yaml.parse(raw.decode(), Loader=loader)
    return events


def _check_scalar(text: str, style: str | None, tag: str | None) -> None:
    if len(text) > _MAX_DIGITS and (tag is not None or not style) and text.lstrip("+-")[:1].isdigit():
        raise DecodeError(f"the body is not valid application/x-yaml: a number has more than {_MAX_DIGITS} digits")
