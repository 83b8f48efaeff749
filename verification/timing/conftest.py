"""The fixtures of processes, on each flavor."""

from pathlib import Path

import pytest

from tests.process.conftest import mark_first, one_stream, stream

__all__ = ["one_stream", "stream"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of each file runs with the privileges of roles."""
    mark_first(items, Path(__file__).parent)
