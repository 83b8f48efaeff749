"""What the demo prints: tables and progress, for people at a terminal and for logs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from sample_app import tables
from sample_app.tables import Connection

_HEAD = ("flights", "departures", "cancelled", "departure delay, min", "arrival delay, min")


@contextmanager
def progress(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """A progress bar; plain lines, one for each tenth, where there is no terminal.

    Args:
        label: what is going on.
        length: how many steps there are.
    """
    if sys.stdout.isatty():
        with click.progressbar(length=length, label=label, show_pos=True) as bar:
            yield bar.update
        return
    done = tenths = 0

    def step(count: int) -> None:
        nonlocal done, tenths
        done += count
        if done * 10 // max(length, 1) > tenths:
            tenths = done * 10 // max(length, 1)
            click.echo(f"{label}: {done:,} of {length:,}")

    yield step


def say(text: str) -> None:
    """Print a line in between, below the progress bar where there is one."""
    click.echo(f"\n{text}" if sys.stdout.isatty() else text)


def print_tables(connection: Connection, routes: int = 10) -> None:
    """Print the sums per carrier, and those of the busiest routes.

    Args:
        routes: how many of them.
    """
    by_carrier = sorted(tables.read_carriers(connection).items(), key=lambda item: -item[1][0])
    _print("carrier", [("-".join(key), sums) for key, sums in by_carrier])
    by_route = sorted(tables.read_routes(connection).items(), key=lambda item: (-item[1][0], item[0]))
    _print(
        f"route (the {routes} busiest of {len(by_route)})", [("-".join(key), sums) for key, sums in by_route[:routes]]
    )


def _print(title: str, rows: list[tuple[str, list[int]]]) -> None:
    width = max(len(title), 8)
    click.echo("\n" + "  ".join([title.ljust(width), *_HEAD]))
    for name, sums in rows:
        numbers = [f"{number:,}".rjust(len(head)) for number, head in zip(sums, _HEAD, strict=False)]
        click.echo("  ".join([name.ljust(width), *numbers]))
