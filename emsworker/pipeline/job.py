"""What a job is: a name, a dataclass of options, and a function that runs it.

A module of a job imports nothing of Spark at its top, so that its options can be listed and checked where Spark is not
installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Generic, TypeVar

from emsworker.core.errors import ConfigError, Problem
from emsworker.pipeline.output import Report

C = TypeVar("C", bound="Options")
Progress = Callable[[str], None]
"""Is told a line at each step of a job."""


class WrongOption(ConfigError):
    """One option of a job is wrong: its name, the value, and the fix."""

    def __init__(self, name: str, value: str, fix: str) -> None:
        super().__init__([Problem(name, value, fix)])


@dataclass(frozen=True)
class Shape:
    """How a field of an options dataclass is given on the command line.

    Args:
        help: what it means.
        metavar: stands for the value in the help.
        read: makes the value of a text; raises ValueError with the fix.
        choices: the only texts that there are.
    """

    help: str
    metavar: str | None = None
    read: Callable[[str], Any] | None = None
    choices: tuple[str, ...] = ()


def option(
    default: Any = MISSING,
    *,
    help: str,
    metavar: str | None = None,
    read: Callable[[str], Any] | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of an options dataclass: an option ``--its-name``, required unless there is a default.

    A field of type ``bool`` is a flag, one of type ``tuple[str, ...]`` may be given several times.
    """
    return field(default=default, metadata={"shape": Shape(help, metavar, read, choices)})


def silent(line: str) -> None:
    """Progress that nobody wants."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What every job is told; each job adds its own."""

    profile: str | None = option(None, help="The stream: a section of the profile file, instead of EMS_URL.")
    dry_run: bool = option(False, help="Say what would be done, and change nothing.")
    progress: Progress = field(default=silent, repr=False, compare=False)


@dataclass(frozen=True)
class Result:
    """What a job did.

    Attributes:
        summary: names and numbers, which JSON can hold.
        report: tables and charts, if the job makes any.
        failure: why it is to count as failed (exit code 1) although it ran to its end.
    """

    summary: Mapping[str, Any]
    report: Report | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Job(Generic[C]):
    """A job.

    Attributes:
        name: as a user gives it.
        options: the class of its options, a dataclass made with :func:`option`.
        run: takes a Spark session and the options.
        needs_spark: tells from the options whether ``run`` uses the session; without it gets ``None``.
    """

    name: str
    options: type[C]
    run: Callable[[Any, C], Result]
    needs_spark: Callable[[C], bool] = lambda config: True
