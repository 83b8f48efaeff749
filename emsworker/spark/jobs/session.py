"""A Spark session for the jobs, on this machine or on a cluster; errors of Spark and its Java become one line."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from emsworker.extending.declaration import require
from emsworker.extending.errors import EmsError
from emsworker.spark.jobs.job import WrongOption

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
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # it prints errors that are raised, too, as JSON
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
        with _without_py4j_tracebacks(session):  # of the end of the session, too
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
def _without_py4j_tracebacks(session: Any) -> Iterator[None]:
    """Drop the traceback that Py4J logs, by the root logger, of a call cut off by Java's death: it is raised too.

    If Java is dead in the end, they are dropped from then on: other threads, as that of ``foreachBatch``, notice later.
    """
    root = logging.getLogger()
    root.addFilter(_not_by_py4j)
    try:
        yield
    finally:
        if _answers(session):
            root.removeFilter(_not_by_py4j)


def _not_by_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def _told_in_a_line(session: Any) -> Iterator[None]:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        if not _answers(session):  # Py4J's texts for a call that Java's death cut off are many
            raise _gone() from error
        if isinstance(error, ConnectionError):
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


# -- errors ------------------------------------------------------------------------------------------------------------

_LONGEST = 500
_OURS = re.compile(r"^(?:Caused by: .*|.*PythonException: .*)?emsworker(?:\.\w+)+: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^Traceback \(most recent call last\):\n(?:^[ \t].*\n)+^(\w[\w.]*(?:: .*)?)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_LOST = re.compile(r"most recent failure: Lost task [^)]*\)[^:]*: (.+)$", re.MULTILINE)
_CALL = re.compile(r"^An error occurred while calling \S+\s*:?\s*")
_PACKAGES = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z]\w*(?:Exception|Error)\b)")
_WRONG_VALUE = re.compile(r"The value '(.*?)' in the config \"(.+?)\" is invalid\. *(.*)")
_INSTALL = "install 'emsworker[spark]' in the Python that PYSPARK_PYTHON names, on every node"
_REACH = "see whether it runs, and is reached from here under that name"
_FIXES = (
    ("OutOfMemoryError|heap space", "give Spark more memory, by --conf spark.driver.memory=4g or the like"),
    ("Mkdirs failed|AccessControl|Permission denied|Read-only", "name a folder that Spark's processes may write to"),
    ("DATA_SOURCE_NOT_FOUND.*: ems|ModuleNotFoundError|ImportError", _INSTALL),
    ("All masters are unresponsive|ConnectException|UnknownHostException", _REACH),
    ("PATH_NOT_FOUND", "see whether it exists, under that name, on every node"),
    ("No space left", "make room there, or name another folder"),
)


class SparkFailed(EmsError):
    """Spark failed; the message is one line, and Spark's own error is the cause of this one."""


def told(error: Exception) -> EmsError:
    """Convert an error of Spark, Py4J or Python on an executor to an :class:`~emsworker.core.errors.EmsError`."""
    text = str(error)
    if wrong := _wrong_value(text):
        return wrong
    if found := _OURS.findall(text):
        return SparkFailed(_short(found[-1]))
    return SparkFailed(f"Spark failed: {_with_fix(_essence(text))}")


def _gone() -> SparkFailed:
    fix = "it was killed, or had too little memory (--conf spark.driver.memory=4g)"
    return SparkFailed(f"the Java process of Spark is gone: {fix}")


def not_started(error: Exception, said: str, master: str, settings: Mapping[str, str]) -> EmsError:
    """Return the error that says why Spark did not start.

    Args:
        error: what Spark raised.
        said: what Java wrote until then.
        master: the chosen master.
        settings: the settings that the user gave.
    """
    text = f"{error}\n{said}"
    if wrong := _wrong_value(text):
        return wrong
    if re.search("Could not parse Master URL|Master must either be|Invalid master URL", text):
        return WrongOption("--master", master, "must be local[*], spark://host:port, yarn or k8s://https://host:port")
    if memory := re.search(r"(?:Invalid (?:maximum|initial) heap size|Unrecognized \S+ option): *(.+)", text):
        given = next((f"{name}={value}" for name, value in settings.items() if value in memory[1]), memory[1])
        return WrongOption("--conf", given, f"Java does not take it ({memory[0].strip()})")
    if "JAVA_GATEWAY_EXITED" in text and not re.search("^Exception|^Error", said, re.MULTILINE):
        return SparkFailed("Spark does not start: Java 17 or later must be on the PATH, or named by JAVA_HOME")
    return SparkFailed(f"Spark does not start: {_with_fix(_essence(said if 'Exception' in said else text))}")


def _wrong_value(text: str) -> WrongOption | None:
    found = _WRONG_VALUE.search(text)
    return None if found is None else WrongOption("--conf", f"{found[2]}={found[1]}", _short(found[3]) or "is invalid")


def _essence(text: str) -> str:
    """Return the most specific line: of a Python traceback if there is one, else of the innermost cause."""
    python, causes, lost = _PYTHON.findall(text), _CAUSE.findall(text), _LOST.findall(text)
    first = next((line for line in _CALL.sub("", text).splitlines() if line.strip()), "no reason was given")
    found = (python or [line for line in causes if "Traceback" not in line] or lost or [first])[-1]
    return _short(re.sub(r'^Exception in thread "\S+" ', "", found))


def _short(line: str) -> str:
    line = _PACKAGES.sub("", line)
    line = re.sub(r"\s*SQLSTATE: \w+", "", line).strip().rstrip(".")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


def _with_fix(line: str) -> str:
    fix = next((fix for pattern, fix in _FIXES if re.search(pattern, line)), None)
    return f"{line} (--traceback shows more)" if fix is None else f"{line}; {fix}"
