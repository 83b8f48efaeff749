"""Errors of Python's functions, in the words of the command line: its options instead of arguments."""

from __future__ import annotations

import contextlib
import re

import click
from click.core import ParameterSource

from emsworker.core.durations import format_duration
from emsworker.core.errors import ConfigError, Problem

from .context_keys import INVOKED

_ASKED_FOR = re.compile(r"\b([a-z_]+)=True\b")


def error_text(error: Exception, context: click.Context) -> str:
    """Format an error in one line."""
    if isinstance(error, ConfigError):
        return "; ".join(problem_text(problem, context) for problem in error.problems)
    return _name_flags(str(error), context)


def problem_text(problem: Problem, context: click.Context) -> str:
    """Format a problem; an argument that was given as an option has the option's name."""
    name = problem.name
    option = _option(name, context) or _option(name.removesuffix("_s"), context)
    if option is None:
        return _name_flags(str(problem), context)
    value, fix = problem.value, problem.fix
    if name.endswith("_s"):
        fix = fix.removesuffix(", in seconds")
        with contextlib.suppress(ValueError):
            value = format_duration(float(value))
    return _name_flags(f"{option} = {value}: {fix}", context)


def _name_flags(text: str, context: click.Context) -> str:
    """Name options like ``--force`` where an error asks for ``force=True``."""
    return _ASKED_FOR.sub(lambda match: _option(match[1], context, is_given=False) or match[0], text)


def _option(name: str, context: click.Context, *, is_given: bool = True) -> str | None:
    """Return an option of the command that was invoked, by the name of its argument; none if a setting gave it."""
    invoked: click.Context = context.meta.get(INVOKED, context)
    for one in invoked.command.params:
        if isinstance(one, click.Option) and one.name == name:
            if is_given and invoked.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
                return None
            return max(one.opts, key=len)
    return None
