"""Errors of Spark and its Java as one line: the thing, the value and the fix."""

from __future__ import annotations

import re
from collections.abc import Mapping

from emsworker.core.errors import EmsError
from emsworker.spark.jobs.job import WrongOption

_LONGEST = 500
_OURS = re.compile(r"^(?:Caused by: .*|.*PythonException: .*)?emsworker(?:\.\w+)+: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^Traceback \(most recent call last\):\n(?:^[ \t].*\n)+^(\w[\w.]*(?:: .*)?)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
_LOST = re.compile(r"most recent failure: Lost task [^)]*\)[^:]*: (.+)$", re.MULTILINE)
_CALL = re.compile(r"^An error occurred while calling \S+\s*:?\s*")
_PACKAGES = re.compile(r"\b(?:[a-z]\w*\.){2,}(?=[A-Z]\w*(?:Exception|Error)\b)")
_WRONG_VALUE = re.compile(r"The value '(.*?)' in the config \"(.+?)\" is invalid\. *(.*)")
_SILENT = re.compile(
    "Answer from Java side is empty|while trying to connect to the Java server|Error while (sending|receiving)"
)  # the texts of Py4J for a broken connection; which one depends on when Java has ended
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
    if isinstance(error, ConnectionError) or _SILENT.search(text):
        fix = "it was killed, or had too little memory (--conf spark.driver.memory=4g)"
        return SparkFailed(f"the Java process of Spark is gone: {fix}")
    if found := _OURS.findall(text):
        return SparkFailed(_short(found[-1]))
    return SparkFailed(f"Spark failed: {_with_fix(_essence(text))}")


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
