"""A Spark session for the jobs: on this machine, or on whatever cluster somebody names."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from emsworker.core.errors import EmsError

DEFAULT_MASTER = "local[*,4]"
"""All cores of this machine; a task that fails is tried again, as on a cluster."""

# What the jobs' results depend on, wherever they run.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A folder topic=1 must not turn the name of a topic into a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
}
# What makes a session on one machine start quickly and stay small; measured, see docs/how-to/spark.md.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


class SparkMissing(EmsError):
    """PySpark is not installed, or finds no Java."""


def check_installed() -> None:
    """Whether there is a PySpark.

    Raises:
        SparkMissing: with the command that installs it.
    """
    if find_spec("pyspark") is None:
        raise SparkMissing("PySpark is not installed; run `pip install 'emsworker[spark]'` (it also needs Java 17)")


def prepared(spark: Any) -> Any:
    """The same Spark with the settings that the jobs' results depend on; the caller's session keeps its own."""
    session = spark.newSession()
    for key, value in _ALWAYS.items():
        session.conf.set(key, value)
    return session


@contextlib.contextmanager
def open_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A Spark session that is stopped at the end.

    Under ``spark-submit`` it takes the master, and what else was configured, from there.

    Args:
        name: of the application.
        master: where it runs; without it all cores of this machine.
        settings: of Spark, which win over ours.

    Raises:
        SparkMissing: it cannot be started.
    """
    check_installed()
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    chosen = dict(_ALWAYS)
    if not submitted or master is not None:
        where = master or DEFAULT_MASTER
        builder = builder.master(where)
        if where.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            chosen |= _LOCAL
    for key, value in {**chosen, **(settings or {})}.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except PySparkException as error:
        raise SparkMissing(
            f"Spark does not start ({error}); Java 17 or later must be on the PATH or JAVA_HOME"
        ) from None
    try:
        session.sparkContext.setLogLevel("ERROR")
        yield session
    finally:
        session.stop()
