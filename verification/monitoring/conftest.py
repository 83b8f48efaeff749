"""The fixtures of processes, on the first flavor."""

from tests.process.conftest import one_stream, server

__all__ = ["one_stream", "server"]
