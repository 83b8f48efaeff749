"""``ems groups limit``."""

from __future__ import annotations

from typing import Any

import click

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.options import common_options
from emsworker.console.output import print_record
from emsworker.console.streams import open_stream
from emsworker.core.limits import Limit


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("name", shell_complete=complete_groups)
@click.option("--rate", metavar="N/s|N/m|N/h", help="Maximum rate of started messages, on all machines.")
@click.option("--max-running", type=click.IntRange(1, 65535), help="Maximum of running messages, on all machines.")
@click.option("--no-rate", is_flag=True, help="No limit of the rate.")
@click.option("--no-max-running", is_flag=True, help="No limit of running messages.")
@common_options
def limit(
    topic: str, name: str, rate: str | None, max_running: int | None, no_rate: bool, no_max_running: bool, as_json: bool
) -> None:
    """Show the limits of the group NAME on TOPIC, or change those that are named.

    Running workers follow within a fifth of a second. What is set here holds, whatever an app declares. RUNNING is how
    many slots are taken just now; it is counted only while there is a --max-running.
    """
    if (rate is not None and no_rate) or (max_running is not None and no_max_running):
        raise click.UsageError("Give either a limit or its --no- option.")
    changes: dict[str, Any] = {}
    if rate is not None or no_rate:
        changes["rate"] = rate
    Limit(rate, max_running)  # refuses what is no rate, before the server is asked
    if max_running is not None or no_max_running:
        changes["max_running"] = max_running
    limits = open_stream().admin().limits
    held = limits.set(topic, name, **changes) if changes else limits.get(topic, name)
    about = {"topic": topic, "group": name, "rate": held.rate, "max_running": held.max_running}
    print_record(about | {"running": limits.running(topic, name)}, as_json)
