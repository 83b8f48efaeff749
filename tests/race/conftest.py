"""The fixtures of this tier."""

from tests.support.streams import app, new_app, stream

__all__ = ["app", "new_app", "stream"]
