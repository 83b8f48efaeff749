"""The options by which messages are chosen."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.options import NONE_OR_MORE, PARTITION, duration_option, together

if TYPE_CHECKING:
    from emsworker.admin import Selection, SkipPolicy

# For :func:`selection_of`.
selection_options = together(
    click.option(
        "--from",
        "start",
        metavar="PLACE",
        help="The first: an offset, -N for the last N of each partition, or a time like 2026-01-31T12:00 (UTC).",
    ),
    click.option("--to", "end", metavar="PLACE", help="The last: an offset, or a time before which they were sent."),
    click.option("--partition", type=PARTITION, help="Only this partition."),
    click.option("--key", "keys", multiple=True, help="Only with this key; several: any of them."),
    click.option("--tag", "tags", multiple=True, help="Only with this tag; several: any of them."),
    click.option(
        "--where",
        metavar="PREDICATE",
        help="Only those of which it holds, like \"header('region') = 'eu' and body.amount > 10\".",
    ),
)


def selection_of(given: dict[str, Any]) -> Selection:
    """The selection that was given; its options are taken out of ``given``."""
    from emsworker.admin import Selection

    names = ("start", "end", "partition", "keys", "tags", "where")
    return Selection(**{name: given.pop(name) for name in names})


below_option = click.option(
    "--below-priority", "skip_below", type=click.IntRange(1, 9), help="Skip only messages of a lower level of priority."
)


# For :func:`skip_policy_of`.
skip_options = together(
    click.option(
        "--skip-lag",
        type=NONE_OR_MORE,
        metavar="N",
        help="When more than N messages of a partition wait to be claimed, skip the oldest.",
    ),
    duration_option(
        "--skip-older-than",
        "skip_older_s",
        help="Skip older messages; with --skip-lag, those that meet both conditions",
    ),
    below_option,
)


def skip_policy_of(given: dict[str, Any]) -> SkipPolicy:
    """The policy that was given; its options are taken out of ``given``."""
    from emsworker.admin import SkipPolicy

    return SkipPolicy(given.pop("skip_lag"), given.pop("skip_older_s"), given.pop("skip_below"))


def read_after(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    """A place in a topic: PARTITION/OFFSET."""
    if value is None:
        return None
    partition, slash, offset = value.partition("/")
    if not (slash and all(re.fullmatch("[0-9]{1,20}", number) for number in (partition, offset))):
        raise click.BadParameter(f"{value!r} is not a place; write PARTITION/OFFSET, like 0/4711.")
    return int(partition), int(offset)
