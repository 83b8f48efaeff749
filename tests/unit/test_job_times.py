"""Times of the jobs of the pipeline, as they are written on a command line."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyarrow")

from emsworker.spark.jobs.reading import read_moment


def test_a_duration_is_so_long_ago() -> None:
    for text, ago in (("10m", timedelta(minutes=10)), ("2h", timedelta(hours=2))):
        assert abs(datetime.now(UTC) - ago - read_moment(text)) < timedelta(minutes=1)
    assert read_moment("2026-11-21") == read_moment("20261121") == datetime(2026, 11, 21, tzinfo=UTC)
    for wrong in ("soon", "3000 years", ""):
        with pytest.raises(ValueError, match=r"must be a time like .*, or a duration like 10m"):
            read_moment(wrong)
