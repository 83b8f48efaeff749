"""The fixtures of this part."""

from tests.support.streams import stream

__all__ = ["stream"]
