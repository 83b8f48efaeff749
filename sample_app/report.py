"""What the demo prints: tables and progress, for people at a terminal and for logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from sample_app import tables
from sample_app.expected import Expected
from sample_app.settings import ROTATING
from sample_app.tables import Connection

_HEAD = ("flights", "departures", "cancelled", "departure delay, min", "arrival delay, min")

_WIDTH = 33  # of the longest title


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; plain lines, one for each quarter, where there is no terminal.

    Args:
        label: what is going on.
        length: how many steps there are.
    """
    if sys.stdout.isatty():
        with click.progressbar(length=length, label=label, show_pos=True) as bar:
            yield bar.update
        return
    done = quarters = 0

    def step(count: int) -> None:
        nonlocal done, quarters
        done += count
        if done * 4 // max(length, 1) > quarters:
            quarters = done * 4 // max(length, 1)
            click.echo(f"{label}: {done:,} of {length:,}")

    yield step


def say(text: str) -> None:
    """Print a line in between, below the progress bar where there is one."""
    click.echo(f"\n{text}" if sys.stdout.isatty() else text)


def print_tables(connections: Sequence[Connection], shown: int = 5) -> None:
    """Print the sums of the busiest carriers and routes.

    Args:
        shown: how many of each.
    """
    _print("carrier", tables.read_carriers(connections), shown)
    _print("route", tables.read_routes(connections), shown)


def _print(what: str, sums: Mapping[tuple[str, ...], list[int]], shown: int) -> None:
    busiest = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:shown]
    title = f"{what} (the {len(busiest)} busiest of {len(sums)})"
    width = max(len(title), _WIDTH)
    click.echo("\n" + "  ".join([title.ljust(width), *_HEAD]))
    for key, numbers in busiest:
        columns = [f"{number:,}".rjust(len(head)) for number, head in zip(numbers, _HEAD, strict=False)]
        click.echo("  ".join(["-".join(key).ljust(width), *columns]))


def print_what_is_right(expected: Expected, notice_delay_s: int, max_attempts: int) -> None:
    """Say what it means that there are no differences."""
    notices, told = len(expected.notifications), len(expected.notices)
    groups = len({line.split(" ")[0] for line in expected.dead if ": used up" not in line})
    click.echo()
    for line in (
        f"every one of {len(expected.flights):,} flights counted once, by carrier, by route and by aircraft",
        f"every one of {expected.rotating_flights:,} flights of {' and '.join(ROTATING)} noted in the order of its "
        f"aircraft, though one in fifty failed at first",
        f"every one of {notices:,} notices sent {notice_delay_s} s later, none of them early: {told:,} got through, "
        f"{notices - told:,} are dead letters after {max_attempts} attempts",
        f"every one of {len(expected.malformed)} malformed rows a dead letter with its reason, in each of {groups} "
        "groups",
        f"every one of {len(expected.carriers)} carriers' shares written once, and summed up by the nightly flow",
        f"every one of {len(expected.carriers) + 2} rows of its rehearsal, which failed at the end, undone in reverse "
        "order",
    ):
        click.echo(line)
