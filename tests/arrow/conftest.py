"""A stream that the environment names, as an analyst's notebook finds it."""

import pytest

from tests.support.streams import Stream, app, new_app, stream

__all__ = ["app", "new_app", "stream"]


@pytest.fixture
def named(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The test's database, named by ``EMS_URL``."""
    monkeypatch.setenv("EMS_URL", stream.url)
    return stream
