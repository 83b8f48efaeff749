"""A job of the pipeline: a name, a dataclass of options, and a function that runs it.

A job's module does not import Spark at its top, so that its options can be listed and checked without Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field
from typing import Any, Generic, TypeVar

from emsworker.extending.errors import ConfigError, Problem
from emsworker.spark.jobs.report import JobReport

C = TypeVar("C", bound="Options")
Progress = Callable[[str], None]
"""Called with a line of text at each step of a job."""


class WrongOption(ConfigError):
    """An option of a job is wrong: its name, the value, and the fix."""

    def __init__(self, name: str, value: str, fix: str) -> None:
        super().__init__([Problem(name, value, fix)])


@dataclass(frozen=True)
class Shape:
    """The command-line form of a field of an options dataclass.

    Args:
        help: its help text.
        metavar: the name of the value in the help.
        read: parses the text; raises ValueError with the fix.
        choices: the allowed texts.
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
    """Define a field of an options dataclass: an option ``--its-name``, required unless it has a default.

    A field of type ``bool`` is a flag; one of type ``tuple[str, ...]`` may be given several times.
    """
    return field(default=default, metadata={"shape": Shape(help, metavar, read, choices)})


def silent(line: str) -> None:
    """Discard progress."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every job; each job adds its own."""

    profile: str | None = option(None, help="The stream: a section of the profile file, instead of EMS_URL.")
    dry_run: bool = option(False, help="Say what would be done, and change nothing.")
    progress: Progress = field(default=silent, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class OfTopics(Options):
    """Options of a job on topics."""

    topic: tuple[str, ...] = option((), help="Only this topic; may be given several times.", metavar="NAME")


@dataclass(frozen=True, kw_only=True)
class OfGroups(OfTopics):
    """Options of a job on groups."""

    group: str | None = option(None, help="Only this group.", metavar="NAME")


@dataclass(frozen=True)
class JobResult:
    """Result of a job.

    Attributes:
        summary: names and values that JSON can hold.
        report: tables and charts, if the job makes any.
        failure: the reason if the job ran to its end but counts as failed (exit code 1).
    """

    summary: Mapping[str, Any]
    report: JobReport | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Job(Generic[C]):
    """A job of the pipeline.

    Attributes:
        name: its name on the command line.
        options: the class of its options, a dataclass made with :func:`option`.
        run: takes a Spark session and the options.
        needs_spark: returns from the options whether ``run`` uses the session; if not, ``run`` gets ``None``.
        size: returns from the options how many rows a run reads, approximately. A job that has it also runs without a
            session, in this process.
        role: the least of the roles that may run it, for the hint in an error about a refused privilege.
    """

    name: str
    options: type[C]
    run: Callable[[Any, C], JobResult]
    needs_spark: Callable[[C], bool] = lambda config: True
    size: Callable[[C], int] | None = None
    role: str = "reader"
