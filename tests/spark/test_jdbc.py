"""Spark's own JDBC source behind our planning; it needs MariaDB Connector/J (Debian: libmariadb-java)."""

from typing import Any

import pytest

from emsworker.core.errors import ConfigError
from emsworker.spark import read_jdbc
from tests.spark.conftest import JAR
from tests.spark.test_batch import fill, insert
from tests.support.streams import Stream

pytestmark = pytest.mark.skipif(not JAR.exists(), reason=f"{JAR} is not installed")


def test_jdbc_gives_the_same_rows(stream: Stream, spark: Any, read: Any) -> None:
    fill(stream, "a", 30, 2, key="k")
    topic = stream.topic("b")
    for offset in (1, 2, 4):
        insert(stream, topic.id, offset)
    frame = read_jdbc(spark, profile="test", subscribe="a,b", minPartitions="4")
    python = read("a,b")
    assert frame.dtypes == python.dtypes
    assert frame.rdd.getNumPartitions() >= 4
    assert sorted(map(tuple, frame.collect()), key=str) == sorted(map(tuple, python.collect()), key=str)
    assert stream.url.split(":")[2].split("@")[0] not in frame._jdf.queryExecution().toString()
    assert read_jdbc(spark, profile="test", subscribe="b", endingOffsets='{"b":{"0":1}}').count() == 0


def test_times_are_exact_in_the_hour_that_comes_twice(stream: Stream, spark: Any, read: Any) -> None:
    fill(stream, "a", 4, 1)
    for offset, text in enumerate(("2026-10-25 00:30:00", "2026-10-25 01:30:00.000001", "2026-03-29 00:59:59"), 1):
        stream.rows("UPDATE ems_message SET born_at = %s WHERE `offset` = %s", text, offset)
    zone = spark.conf.get("spark.sql.session.timeZone")
    try:
        for name in ("Europe/Berlin", "UTC"):
            spark.conf.set("spark.sql.session.timeZone", name)
            frames = read_jdbc(spark, profile="test", subscribe="a"), read("a")
            jdbc, python = (frame.selectExpr("offset", "unix_micros(timestamp) AS at") for frame in frames)
            assert sorted(map(tuple, jdbc.collect())) == sorted(map(tuple, python.collect()))
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)


def test_what_jdbc_cannot_do_is_told(stream: Stream, spark: Any) -> None:
    with pytest.raises(ConfigError, match="option includeHeaders = true: JDBC reads the plain columns"):
        read_jdbc(spark, profile="test", subscribe="t", includeHeaders="true")
