"""``ems refused``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from emsworker.console.dialogue import as_far_as_allowed, confirm
from emsworker.console.failures import Errors, each_of, end_with
from emsworker.console.options import common_options, stream_options, yes_option
from emsworker.console.output import print_done, print_rows
from emsworker.console.streams import open_stream
from emsworker.core.counted import counted

_ids = click.argument("ids", nargs=-1, type=click.IntRange(1), metavar="[ID]...")
_all = click.option("--all", "every", is_flag=True, help="All rows that are refused now.")


@click.group()
@stream_options
def refused() -> None:
    """List, retry and delete rows of ems_publish that cannot be sent as they are.

    Programs that send by plain SQL write into that table; a row with a wrong value stays there, with an error.
    """


@refused.command("list")
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Maximum number.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", help="Only rows with higher ids.")
@common_options
def list_(limit: int, after: int, as_json: bool) -> None:
    """List the rows with their errors, in order of their ids; times are UTC."""
    refused = open_stream().admin().refused
    found = as_far_as_allowed(lambda details: refused.list(after=after, limit=limit, details=details), "errors")
    rows = [asdict(row) for row in found]
    print_rows(rows, ["id", "topic", "task", "size", "created_at", "error"], as_json, "No row is refused.")


@refused.command()
@_ids
@_all
@common_options
def retry(ids: tuple[int, ...], every: bool, as_json: bool) -> None:
    """Check rows again, for instance after their topic was created."""
    count, errors = _change(open_stream().admin().refused.retry, _chosen(ids, every))
    if count or not errors:
        print_done({"retried": count}, f"{counted(count, 'row')} will be checked again.", as_json)
    end_with(errors)


@refused.command()
@_ids
@_all
@yes_option
@common_options
def delete(ids: tuple[int, ...], every: bool, yes: bool, as_json: bool) -> None:
    """Delete rows for good; their messages were never sent."""
    chosen = _chosen(ids, every)
    admin = open_stream().admin()
    confirm(f"Delete {'all refused rows' if chosen is None else counted(len(chosen), 'refused row')}?", yes)
    count, errors = _change(admin.refused.delete, chosen)
    if count or not errors:
        print_done({"deleted": count}, f"Deleted {counted(count, 'row')}.", as_json)
    end_with(errors)


def _change(change: Callable[[Sequence[int] | None], int], chosen: Sequence[int] | None) -> tuple[int, Errors]:
    """Change rows, one after another if they are named; return how many, and why others were not."""
    if chosen is None:
        return change(None), {}
    counts, errors = each_of(chosen, lambda one: change([one]))
    return sum(counts), errors


def _chosen(ids: tuple[int, ...], every: bool) -> tuple[int, ...] | None:
    if bool(ids) == every:
        raise click.UsageError("Name rows by their ids, or say --all.")
    return None if every else tuple(dict.fromkeys(ids))
