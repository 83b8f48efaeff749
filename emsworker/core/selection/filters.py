"""Filter of a group: the messages of a topic that it receives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from emsworker.core.codec import encode_headers
from emsworker.core.errors import ConfigError, EncodeError, InvalidName, Problem
from emsworker.core.ids import encode_key

_MAX_CHARACTERS = 4000


@dataclass(frozen=True)
class Filter:
    """Filter on tags and headers: a message matches if its tag is one of ``tags`` and it has all of ``headers``.

    An empty part matches every message. Filters with equal conditions are equal, however they were written.

    Args:
        tags: the tags that match.
        headers: the required headers, with exactly these values.

    Raises:
        ConfigError: naming what is wrong.
    """

    tags: Iterable[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (
            isinstance(self.tags, str)
            or not isinstance(self.tags, Iterable)
            or not all(isinstance(tag, str) and tag for tag in self.tags)
        ):
            raise ConfigError([Problem("filter tags", repr(self.tags), "must be a list of tags that are not empty")])
        object.__setattr__(self, "tags", tuple(sorted(set(self.tags))))
        try:
            object.__setattr__(self, "headers", dict(sorted(self.headers.items())))
            self._encoded_tags()
            encode_headers(self.headers)
        except (AttributeError, TypeError, EncodeError, InvalidName) as error:
            raise ConfigError([Problem("filter", repr((self.tags, self.headers)), str(error))]) from error
        if len(self.to_text()) > _MAX_CHARACTERS:
            raise ConfigError([Problem("filter", f"{self.to_text()[:20]}...", "must be shorter than 4000 characters")])

    def __hash__(self) -> int:
        return hash(self.to_text())

    def __bool__(self) -> bool:
        return bool(self.tags or self.headers)

    def __str__(self) -> str:
        words = [f"tag {' or '.join(self.tags)}"] if self.tags else []
        words += [f"header {name}={value}" for name, value in self.headers.items()]
        return ", ".join(words) or "all messages"

    def to_text(self) -> str:
        """Serialize the filter for the group's row; an empty filter gives an empty text."""
        return json.dumps({"tags": list(self.tags), "headers": dict(self.headers)}) if self else ""

    @classmethod
    def from_text(cls, text: str) -> Filter:
        """Parse the filter of a group's row.

        Raises:
            ConfigError: the text was not written by EMS.
        """
        try:
            return cls(**json.loads(text)) if text else cls()
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError([Problem("filter", repr(text[:100]), f"was not stored by EMS: {error}")]) from None

    def matches(self, tag: str | bytes | None, headers: Mapping[str, str]) -> bool:
        """Return whether a message with this tag and these headers matches; the store evaluates the same in SQL."""
        tags = self._encoded_tags()
        return (not tags or encode_key("tag", tag) in tags) and all(
            headers.get(name) == text for name, text in self.headers.items()
        )

    @property
    def args(self) -> dict[str, Any]:
        """Parameters of a statement that reads only matching messages."""
        return {
            "any_tag": int(not self.tags),
            "tags": self._encoded_tags() or [b""],
            "any_headers": int(not self.headers),
            "wanted_headers": encode_headers(self.headers).decode() or "{}",
        }

    def _encoded_tags(self) -> list[bytes]:
        return [encoded for tag in self.tags if (encoded := encode_key("tag", tag)) is not None]


EVERYTHING = Filter()
