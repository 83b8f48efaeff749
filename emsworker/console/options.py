"""Options of the commands, and the readers of their values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .completing import complete_servers
from .context_keys import INVOKED, NO_COLOR, REDIS_URL, SERVER, TRACEBACK, URL, WIDE

if TYPE_CHECKING:
    from datetime import datetime

# Numbers are bounded here, so that one that no server could take is refused in the command's own words.
COUNT = click.IntRange(1, 1_000_000)  # of what is read into memory and printed
F = TypeVar("F", bound=Callable[..., Any])


def _remember(key: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        ctx.meta[INVOKED] = ctx  # the innermost command parses last
        if value == "":  # an unset variable of a shell; it must not mean the local stream
            raise click.BadParameter("it is empty; leave the option out, or give an address.")
        if value:
            ctx.meta[key] = value  # shared with the commands below, so the option may stand before or after them

    return callback


def together(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Several options as one decorator, in the order of the help page."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# Of every command; they may stand before it too.
stream_options = together(
    click.option(
        "--url",
        metavar="URL",
        expose_value=False,
        callback=_remember(URL),
        help="The stream: mysql://user:password@host:3306/database. EMS_URL does the same, and is never "
        "seen by other users of the machine.",
    ),
    click.option(
        "--server",
        metavar="NAME",
        expose_value=False,
        callback=_remember(SERVER),
        shell_complete=complete_servers,
        help="Only this one of several servers (EMS_SERVERS); main is that of EMS_URL.",
    ),
    click.option(
        "--redis-url",
        metavar="URL",
        expose_value=False,
        callback=_remember(REDIS_URL),
        help="A Redis for wake-ups and the redis allocator; EMS_REDIS_URL does the same.",
    ),
    click.option(
        "--traceback",
        is_flag=True,
        expose_value=False,
        callback=_remember(TRACEBACK),
        help="Show where in the program an error came from.",
    ),
    click.option(
        "--no-color",
        is_flag=True,
        expose_value=False,
        callback=_remember(NO_COLOR),
        help="Print without colors; a non-empty NO_COLOR does the same.",
    ),
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
wide_option = click.option(
    "--wide",
    is_flag=True,
    expose_value=False,
    callback=_remember(WIDE),
    help="Print full ids and all columns on a terminal, however narrow it is.",
)
common_options = together(json_option, wide_option, stream_options)
"""Options of a command that prints something."""
most_option = click.option(
    "--limit", type=COUNT, default=1000, show_default=True, help="Maximum number, of each server; a note tells of more."
)
exact_option = click.option("--exact", is_flag=True, help="Read all now, however many there are.")
raw_option = click.option("--raw", is_flag=True, help="Write only the body, all of it, as it is stored.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


OFFSETS = click.IntRange(1, (1 << 63) - 1)
NONE_OR_MORE = click.IntRange(0, (1 << 63) - 1)
PARTITION = click.IntRange(0, 65535)

DURATION = "a number of seconds, or 500ms, 10s, 5m, 2h, 7d"
TIME = "a time like 2026-01-31T12:00, in UTC unless it names a zone"


def duration_option(*names: str, help: str, default: str | None = None) -> Callable[[F], F]:
    """Return an option that takes a duration; its help ends with the form of durations."""
    more: dict[str, Any] = {} if default is None else {"default": default, "show_default": True}
    return click.option(*names, metavar="DURATION", callback=read_duration, help=f"{help}: {DURATION}.", **more)


def read_headers(given: Sequence[str]) -> dict[str, str]:
    """Return headers that were given as NAME=VALUE."""
    for item in given:
        if not item.partition("=")[0] or "=" not in item:
            raise click.BadParameter(f"{item!r} is not a header; write NAME=VALUE.", param_hint="--header")
    return {name: value for name, _, value in (item.partition("=") for item in given)}


def read_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Turn a duration on the command line into seconds."""
    from emsworker.core.durations import parse_duration

    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.") from None


def read_time(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    """Turn a time on the command line into a datetime in UTC."""
    from emsworker.core.selection.parser import parse_time

    try:
        return None if value is None else parse_time(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time; write {TIME}.") from None


def read_moment(ctx: click.Context, param: click.Parameter, value: str | None) -> float | datetime | None:
    """Turn a duration or a time on the command line into seconds, or into a datetime in UTC."""
    from emsworker.core.durations import parse_duration
    from emsworker.core.selection.parser import parse_time

    if value is None:
        return None
    with contextlib.suppress(ValueError):
        return parse_duration(value)
    try:
        return parse_time(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither {DURATION}, nor {TIME}.") from None


def changes_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given."""
    return {name: value for name, value in given.items() if value is not None}
