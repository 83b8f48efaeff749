"""``ems servers``."""

from __future__ import annotations

import click

from emsworker.console.completing import complete_servers
from emsworker.console.dialogue import progress
from emsworker.console.failures import CommandFailure
from emsworker.console.options import common_options, duration_option, stream_options
from emsworker.console.output import print_json, print_rows
from emsworker.console.streams import open_each, open_main

_COUNTED = 10_000


@click.group()
@stream_options
def servers() -> None:
    """List the servers of EMS_SERVERS, and what is on each; retire one."""


@servers.command("list")
@common_options
def list_(as_json: bool) -> None:
    """List the servers: where each is, whether it answers, and what waits there.

    TOPICS and GROUPS are those that the server keeps; LAG is what their groups have not finished (retries are counted
    up to 10,000 a partition), and OLDEST the age of the oldest message of it. WORKERS are live clients. The exit code
    is 1 if a server cannot be used. On a server with more than 2,000 partitions and groups x partitions, these are
    numbers of the latest samples of the beat there.
    """
    from emsworker.admin.servers import Servers, list_servers

    views = list_servers(Servers(open_each()), _COUNTED)
    if len(views) == 1 and views[0].error is not None:
        raise views[0].error
    rows = [
        {
            "server": view.name,
            "address": view.address,
            "reachable": view.reachable,
            "version": view.version or None,
            "topology": view.topology or None,
            **{
                name: getattr(view, name) if view.usable else None
                for name in ("topics", "groups", "lag", "oldest_s", "workers", "beat", "age_s")
            },
            "error": view.problem or None,
        }
        for view in views
    ]
    columns = ["server", "address", "reachable", "topology", "topics", "groups", "lag", "oldest_s", "workers", "beat"]
    print_rows(rows, columns, as_json, "", spare=["groups", "beat", "workers", "topology"])
    if lines := [f"server {view.name}: {view.problem}" for view in views if not view.usable]:
        raise CommandFailure(lines)


@servers.command()
@click.argument("name", shell_complete=complete_servers)
@click.option("--to", "target", metavar="SERVER", help="The server that gets all topics, instead of their patterns'.")
@duration_option("--timeout", help="How long to wait for groups and forwarded messages; for ever")
@click.option("--force", is_flag=True, help="Retire it although dead letters and the like are lost with it.")
@click.option("--dry-run", is_flag=True, help="Only look at what is left.")
@common_options
def retire(name: str, target: str | None, timeout: float | None, force: bool, dry_run: bool, as_json: bool) -> None:
    """Move everything away from the server NAME, and say whether it can be switched off.

    Take its patterns out of EMS_SERVERS first, so that no topic is created there any more. The command moves its topics
    as `ems topics move` does, to the servers of their patterns, and waits for their groups.

    The exit code is 1, with a line for each reason, while anything needs the server: a topic, a group that has not
    finished there, a pointer of another server, messages to be forwarded, a live worker or beat that has it in
    EMS_SERVERS; or while something would be lost with it, such as dead letters, unless --force. Processes that only
    send are not known.

    Give it again whenever you like: it goes on where it stopped.
    """
    from emsworker.admin.retirement import Retirement

    app = open_main().app()
    try:
        retirement = Retirement(app, name, target)
        if dry_run:
            left = retirement.look()
        else:
            with progress(f"Retiring {name}", None) as bar:
                left = retirement.run(timeout, lambda topic: bar.update(0))
    finally:
        app.close()
    moves = [{"topic": topic, "to": to} for topic, to in sorted(left.topics.items())]
    kept = [f"topic {move['topic']!r} is still kept on {name!r}" for move in ([] if dry_run else moves)]
    reasons = [*kept, *left.needed, *([] if force else (f"would be lost: {text}" for text in left.lost))]
    if as_json:
        print_json({"server": name, "topics": moves, "needed": list(left.needed), "lost": list(left.lost)})
    elif dry_run:
        print_rows(moves, ["topic", "to"], as_json, f"Server {name} keeps no topic.")
    if dry_run:
        for reason in () if as_json else reasons:
            click.echo(f"Left: {reason}", err=True)
    elif reasons:
        raise CommandFailure([f"server {name} is not retired: {reason}" for reason in reasons])
    elif not as_json:
        click.echo(f"Server {name} is retired: take it out of EMS_SERVERS, and switch it off.")
