"""The ``ems`` command: finds its subcommands when they are needed, and turns errors into one line and an exit code."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import traceback
from collections.abc import Mapping
from io import TextIOWrapper
from typing import IO, Any

import click

from emsworker import __version__
from emsworker.console.context_keys import TRACEBACK
from emsworker.console.failures import CommandFailure, EachServer, WrongUsage
from emsworker.console.options import stream_options
from emsworker.core.extension import Command, extensions, load

# Name -> module and short help. Modules are imported when their command is run, so that `ems --help` is quick.
_OWN = {
    "worker": ("worker", "Run a worker: processes that run an app's tasks and subscriptions."),
    "beat": ("worker", "Run the beat alone: background maintenance."),
    "health": ("health", "Ask a worker that runs with --http for its health."),
    "migrate": ("database", "Create the tables of EMS, or bring them up to date."),
    "check": ("database", "Check everything around EMS and report every problem at once."),
    "grants": ("grants", "Print the GRANT statements that ROLE needs, and no more; nothing is changed."),
    "topics": ("topics", "List, create, change, move, purge and delete topics."),
    "groups": ("groups", "List groups with their lag; create, change, pause, limit, reset and delete them."),
    "tasks": ("tasks", "List the tasks of groups with what they ran and what waits; pause and resume single ones."),
    "servers": ("servers", "List the servers of EMS_SERVERS, and what is on each; retire one."),
    "clients": ("inspect", "List the clients with their leases, and the leader of the beat."),
    "messages": ("messages", "Look at messages: list, peek, get, contains. Nothing is changed or claimed."),
    "trace": ("inspect", "Show the producer of a message, and its history in each group."),
    "cancel": ("cancel", "Cancel a message in every group, also while it runs."),
    "dead": ("dead", "List, show, requeue and delete dead letters."),
    "refused": ("refused", "List, retry and delete rows of ems_publish that cannot be sent as they are."),
    "schedules": (
        "schedules",
        "List the schedules of periodic tasks; add, change, pause and delete those that are made at run time.",
    ),
    "readers": ("readers", "List the readers that belong to no group; release their holds, delete their positions."),
    "audit": ("audit", "List what people changed by the dashboard, or cancelled, the latest first."),
    "send": ("send", "Send a message, a task call, or many messages."),
    "completion": ("completion", "Print the shell's completion script for ems."),
}
_COMMANDS = {name: Command(f"emsworker.cli.{module}:{name}", text) for name, (module, text) in _OWN.items()}


class LazyGroup(click.Group):
    """Imports a command's module when the command is run.

    Args:
        own: the commands of the core by name, whose modules are in this package. Those of extensions follow.
    """

    def __init__(self, *args: Any, own: Mapping[str, Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._own = own

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the table above: what one needs first comes first."""
        return list(self._all())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command."""
        found = self._own.get(cmd_name) or self._all().get(cmd_name)  # most need not look for extensions
        if found is None:
            return None
        command: click.Command = load(found.target)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands from the declarations, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.help) for name, one in self._all().items()])

    def _all(self) -> Mapping[str, Command]:
        theirs = {name: command for one in extensions().values() for name, command in one.commands.items()}
        return {**self._own, **{name: command for name, command in theirs.items() if name not in self._own}}

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments, which prints the help page if they ask for it."""
        try:
            return super().make_context(*args, **kwargs)
        except OSError as error:
            if (end := _output_failure(error)) is not None:
                raise end from None
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; whatever it raises becomes lines and an exit code."""
        said = [*ctx._protected_args], [*ctx.args]  # click takes them away, and each server needs them anew

        def run() -> Any:
            ctx._protected_args, ctx.args = [*said[0]], [*said[1]]
            return super(LazyGroup, self).invoke(ctx)

        try:
            try:
                return run()
            except EachServer as each:
                from .fan_out import for_each  # with what prints tables; `ems --help` and most commands need neither

                return for_each(ctx, each.names, run)
        except click.MissingParameter as error:  # click writes each choice into a line of its own
            raise click.UsageError(" ".join(error.format_message().split()), error.ctx) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if (end := _output_failure(error)) is not None:
                raise end from None
            if ctx.meta.get(TRACEBACK):
                from emsworker.core.url import redact

                click.echo(redact(traceback.format_exc()), err=True, nl=False)
            raise _failure(error) from None


_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)


def _output_failure(error: Exception) -> click.exceptions.Exit | CommandFailure | None:
    """Return how to end if the output cannot be written; `ems ... | head` is no failure of any command."""
    if not isinstance(error, OSError) or error.errno not in _UNWRITABLE or error.filename is not None:
        return None  # those of servers and of files that cannot be opened have other forms
    if error.errno == errno.EPIPE and not any(_has_no_reader(stream) for stream in (sys.stdout, sys.stderr)):
        return None  # of a connection: the command has failed
    for name in ("stdout", "stderr"):
        try:
            getattr(sys, name).flush()
        except OSError:  # Python would write what is left when it ends, and fail again
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if error.errno == errno.EPIPE:
        return click.exceptions.Exit(0)
    return CommandFailure([f"the output cannot be written: {error.strerror}"])


def _has_no_reader(stream: IO[str]) -> bool:
    look = select.poll()
    try:
        look.register(stream, 0)  # the end of a pipe's reader is told in any case
    except (OSError, ValueError):  # it is no file of the system
        return False
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))


def _failure(error: Exception) -> CommandFailure:
    from emsworker.core.errors import (
        AccessDenied,
        AppNotFound,
        ConfigError,
        Conflict,
        ConnectionLost,
        EmsError,
        InvalidName,
    )
    from emsworker.core.url import redact

    if isinstance(error, ConfigError):
        return WrongUsage([redact(str(problem)) for problem in error.problems])
    text = redact(str(error))
    if isinstance(error, (AppNotFound, InvalidName)):
        return WrongUsage([text])
    if isinstance(error, AccessDenied):
        return CommandFailure([text + _roles_for(text)])
    if isinstance(error, (EmsError, ConnectionLost, Conflict)):
        return CommandFailure([text])
    return CommandFailure([f"{type(error).__name__}: {text} (--traceback shows where)"])


_DENIED = re.compile(r"(\w+) command denied to user \S+ for (?:column '(\w+)' in )?table [`']?(?:[\w-]+`?\.`?)?(\w+)")


def _roles_for(text: str) -> str:
    """Return which roles have the privilege that the server's refusal names, as the end of a sentence."""
    from emsworker.store import Grants

    match = _DENIED.search(text)
    roles = Grants(extensions().values()).roles_with(match[1], match[3], match[2]) if match else []
    return f"; the roles that have this privilege: {', '.join(roles)}" if roles else ""


@click.command(
    cls=LazyGroup,
    own=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="The stream is where EMS_URL or --url points; without them, the local stream that `ems local start` runs. "
    "Every setting can be given as EMS_<NAME>.",
)
@click.version_option(__version__, prog_name="ems")
@stream_options
def ems() -> None:
    """EMS: Celery-style workers over a durable, replayable message stream in MySQL."""


def main(args: list[str] | None = None) -> None:
    """The console script.

    Args:
        args: instead of the command line's.
    """
    for stream in (sys.stdout, sys.stderr):  # bodies may have half a surrogate pair, which has no UTF-8 form
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    if any("://" in argument for argument in sys.argv):
        from .passwords import hide_passwords

        hide_passwords()
    ems(args=args, prog_name="ems")
