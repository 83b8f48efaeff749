"""In-memory app for users' own tests: no server, the same API, the worker's own rules."""

from emsworker.testing.app import DeadCall, TestApp

__all__ = ["DeadCall", "TestApp"]
