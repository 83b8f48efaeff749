"""A Spark session for the jobs: on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any

from emsworker.core.extras import require
from emsworker.spark.jobs.failing import not_started, told

DEFAULT_MASTER = "local[*,4]"
"""All cores of this machine; failed tasks are retried, as on a cluster."""

# Settings that the jobs' results depend on, on any cluster.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A folder topic=1 must not turn the name of a topic into a number.
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.python.filterPushdown.enabled": "true",
}
# Settings for a quick start and little memory on one machine; measurements are in docs/how-to/spark.md.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.driver.memory": "1g",
    # With only the C1 compiler Java's code cache is 48 MiB: a few jobs fill it, and further code is interpreted.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
}


def prepared(spark: Any) -> Any:
    """Create a session with the settings that the jobs' results depend on; the caller's session is not changed."""
    session = spark.newSession()
    for key, value in _ALWAYS.items():
        session.conf.set(key, value)
    return session


@contextlib.contextmanager
def open_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, java_log: bool = False
) -> Iterator[Any]:
    """Open a Spark session that is stopped at the end; Spark's errors become one line each.

    Under ``spark-submit`` the master and other configuration come from there.

    Args:
        name: the name of the application.
        master: the Spark master; by default all cores of this machine.
        settings: settings of Spark; they override ours.
        java_log: keep Java's log on stderr (under ``spark-submit`` it always is).

    Raises:
        ExtraMissing: PySpark is not installed.
        SparkFailed: Spark cannot be started, or failed afterwards; the cause is Spark's own error.
        ConfigError: ``master`` or one of ``settings`` is wrong.
    """
    require("spark", "a job of the pipeline, beside Java 17,")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder, where = SparkSession.builder.appName(name), _master(master)
    for key, value in _settings(where, settings or {}).items():
        builder = builder.config(key, value)
    with tempfile.TemporaryFile() as log:
        try:
            with contextlib.nullcontext() if java_log else _stderr_into(log):
                session = (builder if where is None else builder.master(where)).getOrCreate()
        except (PySparkException, Py4JError) as error:
            log.seek(0)
            said = log.read().decode(errors="replace")
            raise not_started(error, said, where or "of spark-submit", settings or {}) from error
        try:
            session.sparkContext.setLogLevel("ERROR")
            # If its Java is gone, the server for accumulators would print a traceback beside our one-line error.
            session.sparkContext._accumulatorServer.handle_error = lambda *_: None
            with _told_in_a_line(session):
                yield session
        finally:
            with contextlib.suppress(Py4JError, OSError):  # its Java is gone, which was reported before
                session.stop()


@contextlib.contextmanager
def _told_in_a_line(session: Any) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise told(error) from error
    except ConnectionError as error:  # Py4J's, if PySpark swallowed the first error
        if _answers(session):
            raise
        raise told(error) from error


def _answers(session: Any) -> bool:
    from py4j.protocol import Py4JError

    try:
        session.sparkContext._jvm.java.lang.System.currentTimeMillis()
    except (Py4JError, OSError):
        return False
    return True


def _master(given: str | None) -> str | None:
    """Return the Spark master; ``None`` leaves it to ``spark-submit``."""
    return given or (None if "PYSPARK_GATEWAY_PORT" in os.environ else DEFAULT_MASTER)


def _settings(master: str | None, given: Mapping[str, str]) -> dict[str, str]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = dict(_ALWAYS)
    if master is not None and master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        chosen |= _LOCAL
    return {**chosen, **given}


@contextlib.contextmanager
def _stderr_into(file: IO[bytes]) -> Iterator[None]:
    """Redirect stderr to a file; a process started meanwhile (Java) keeps the file as its stderr."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
