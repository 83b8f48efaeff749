"""The fixtures of this folder."""

from tests.support.streams import stream

__all__ = ["stream"]
