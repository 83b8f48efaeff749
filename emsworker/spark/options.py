"""Options of writing with ``format("ems")``; those of reading are in :mod:`emsworker.arrow.options`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from emsworker.arrow.options import OptionReader, boolean
from emsworker.extending.errors import InvalidName, Problem
from emsworker.extending.values import check_name

_LONGEST_JOB = 180


@dataclass(frozen=True)
class WriteOptions:
    """Options of a writer."""

    topic: str | None
    profile: str | None
    job_id: str | None
    auto_create: bool = False


def write_options(given: Mapping[str, str], *, streaming: bool, overwrite: bool) -> WriteOptions:
    """Check and read the options of a writer.

    Raises:
        ConfigError: names every wrong option.
    """
    known = ("topic", "profile", "autocreate", *(("checkpointlocation",) if streaming else ("jobid",)))
    options_in = OptionReader(given, known, "a streaming write" if streaming else "a batch write")
    options = WriteOptions(
        options_in.get("topic", _name, None),
        options_in.get("profile", str, None),
        options_in.get("jobId", _job, None),
        options_in.get("autoCreate", boolean, False),
    )
    if overwrite:
        options_in.problems.append(Problem("mode", "overwrite", "a stream is only appended to; use append"))
    options_in.check()
    return options


def _name(text: str) -> str:
    try:
        return check_name("topic", text)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _job(text: str) -> str:
    if not 1 <= len(text.encode()) <= _LONGEST_JOB:
        raise ValueError(f"must have 1 to {_LONGEST_JOB} bytes")
    return text
