"""``ems chaos``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from emsworker.extending.console import (
    common_options,
    confirm,
    duration_option,
    open_single,
    print_json,
    print_rows,
    stream_options,
    yes_option,
)
from emsworker.extending.values import counted

if TYPE_CHECKING:
    from emsworker.chaos import ChaosReport

_FAULTS = ("kill", "pause", "connection")


@click.group()
@stream_options
def chaos() -> None:
    """Break workers on purpose, and check that nothing was lost.

    An app writes the history with the middleware emsworker.chaos.Recorder. For streams that are there to be tested:
    the check reads whole tables.
    """


@chaos.command("break")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@duration_option("--for", "for_s", default="60s", help="The time for which faults are made")
@duration_option("--every", "every_s", default="5s", help="The time from one fault to the next")
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(_FAULTS),
    help="Only these: kill -9 of a worker process, a pause of one, KILL of connections; all if none is named.",
)
@click.option("--name", help="Only workers of this name (`ems worker --name`).")
@click.option("--seed", type=int, help="Seed of the random choices; by default a new one each time.")
@yes_option
@common_options
def break_(
    folder: Path,
    for_s: float,
    every_s: float,
    faults: tuple[str, ...],
    name: str | None,
    seed: int | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Kill and pause worker processes of this machine, and kill connections, at random.

    Each fault is written to the history in FOLDER, the one that the app's Recorder was given.
    """
    from emsworker.chaos.faults import Breaker
    from emsworker.chaos.history import Log

    stream = open_single()
    confirm(f"Kill and pause workers, and cut connections, for {for_s:g} s?", yes)
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    pause_s = stream.settings.lease_s + 2
    breaker = Breaker(stream.database(), stream.url, Log(folder), random.Random(seed), name, pause_s)
    done: list[dict[str, Any]] = []
    for fault in breaker.go_on(list(faults or _FAULTS), for_s, every_s):
        done.append({"fault": fault.name, "process": fault.pid, "took_s": round(fault.until - fault.at, 3)})
        if not as_json:
            click.echo(f"{fault.name} {fault.pid or 'of some'}")
    if as_json:
        print_json({"seed": seed, "faults": done})
    else:
        click.echo(f"{counted(len(done), 'fault')} (--seed {seed}).")


@chaos.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--settled", is_flag=True, help="Nothing is left to do: every hole should be closed, and nothing wait.")
@duration_option(
    "--bound", "bound_s", default="500ms", help="The longest time that a repeated run ended before a fault"
)
@common_options
@click.pass_context
def check(ctx: click.Context, folder: Path, settled: bool, bound_s: float, as_json: bool) -> None:
    """Compare the history in FOLDER with the stream; exit code 1 if anything is wrong.

    \b
    lost        confirmed, and neither run to its end, nor waiting, nor dead
    phantom     in the stream or run, and never sent
    duplicate   run again though no fault explains it, or twice in the stream
    order       run before its turn in an ordered group
    stuck       with --settled: still waiting
    run though cancelled, claimed twice, acknowledged by a non-owner, offset reused, hole, client left
    """  # noqa: D301 - click wants the character itself
    from emsworker.chaos import Rules, check_stream
    from emsworker.extending.errors import ConfigError, Problem

    stream = open_single()
    try:
        report = check_stream(stream.database(), folder, Rules(bound_s=bound_s, settled=settled))
    except (FileNotFoundError, ValueError) as error:
        raise ConfigError([Problem("history", str(folder), str(error))]) from None
    _show(report, as_json)
    ctx.exit(0 if report else 1)


def _show(report: ChaosReport, as_json: bool) -> None:
    numbers = {"sent": report.asked, "confirmed": report.confirmed, "runs": report.runs, "repeated": report.repeated}
    rows = [
        {"kind": finding.kind.value, "where": finding.where, "group": finding.group, "text": finding.text}
        for finding in report.findings
    ]
    if as_json:
        print_json(numbers | {"findings": rows})
        return
    print_rows([numbers], list(numbers), False, "")
    click.echo()
    if rows:
        print_rows(rows, ["kind", "where", "group", "text"], False, "")
    else:
        click.echo("Nothing is wrong.")
