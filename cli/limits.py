"""``ems groups limit``."""

from __future__ import annotations

from typing import Any

import click

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.options import common_options
from emsworker.console.output import print_record
from emsworker.console.streams import open_stream
from emsworker.core.limits import Limit

_LIMITS = ("rate", "max_running", "max_running_per_key")


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("name", shell_complete=complete_groups)
@click.option("--rate", metavar="N/s|N/m|N/h", help="Maximum rate of started messages, on all machines.")
@click.option("--max-running", type=click.IntRange(1, 65535), help="Maximum of running messages, on all machines.")
@click.option(
    "--max-running-per-key",
    type=click.IntRange(1, 65535),
    help="Maximum of running messages of each key, if the tasks of a fair group declare one.",
)
@click.option("--no-rate", is_flag=True, help="No limit of the rate.")
@click.option("--no-max-running", is_flag=True, help="No limit of running messages.")
@click.option("--no-max-running-per-key", is_flag=True, help="No limit of running messages of each key.")
@common_options
def limit(topic: str, name: str, as_json: bool, **given: Any) -> None:
    """Show the limits of the group NAME on TOPIC, or change those that are named.

    Running workers follow within a fifth of a second. What is set here holds, whatever an app declares. RUNNING is how
    many slots are taken just now; it is counted only while there is a --max-running.
    """
    changes: dict[str, Any] = {}
    for one in _LIMITS:
        if given[one] is not None and given[f"no_{one}"]:
            raise click.UsageError("Give either a limit or its --no- option.")
        if given[one] is not None or given[f"no_{one}"]:
            changes[one] = given[one]
    Limit(**changes)  # refuses what is no rate, before the server is asked
    limits = open_stream().admin().limits
    held = limits.set(topic, name, **changes) if changes else limits.get(topic, name)
    about = {"topic": topic, "group": name, **{one: getattr(held, one) for one in _LIMITS}}
    print_record(about | {"running": limits.running(topic, name)}, as_json)
