"""The fixtures of this tier."""

from tests.support.streams import stream

__all__ = ["stream"]
