"""In-memory app for users' own tests: no server, the same API, the worker's own rules."""

from emsworker.testing.app import DeadLetter, TestApp

__all__ = ["DeadLetter", "TestApp"]
