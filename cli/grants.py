"""``ems grants``."""

from __future__ import annotations

import click

from emsworker.console.options import common_options
from emsworker.console.output import print_json
from emsworker.console.streams import open_main
from emsworker.core.extension import extensions
from emsworker.store import Grants

_GRANTS = Grants(extensions().values())


@click.command()
@click.argument("role", metavar="ROLE", type=click.Choice(_GRANTS.roles))
@click.option("--user", "account", required=True, metavar="USER@HOST", help="The user, who must exist.")
@click.option("--database", metavar="NAME", help="The stream's database; that of --url or EMS_URL.")
@click.option("--allow", multiple=True, type=click.Choice(_GRANTS.allowances), help="Permit this as well; repeatable.")
@click.option(
    "--with",
    "names",
    metavar="EXTENSION",
    multiple=True,
    help="Include what the role needs on the tables of this extension, such as celery; repeatable.",
)
@click.option("--group-replication", "in_group", is_flag=True, help="The servers are members of a replication group.")
@common_options
def grants(
    role: str,
    account: str,
    database: str | None,
    allow: tuple[str, ...],
    names: tuple[str, ...],
    in_group: bool,
    as_json: bool,
) -> None:
    """Print the GRANT statements that ROLE needs, and no more; nothing is changed.

    A publisher sends by plain SQL; a producer sends; a worker runs tasks and sends; a beat does its services, and so
    does a worker that is allowed to; a reader looks, and reads with Spark; a sink writes with Spark; an admin does the
    rest. Topics and groups are created by an admin, unless a role is allowed to auto-create them.
    """
    from emsworker.core.extension import extension
    from emsworker.core.url import DatabaseUrl
    from emsworker.store import bringing

    used = {one.name: one for one in (*bringing(role), *map(extension, names))}
    name = database or DatabaseUrl.parse(open_main().url).database
    needed = Grants(used.values()).statements(role, name, account, allow, in_group=in_group)
    if as_json:
        print_json(needed)
    for statement in () if as_json else needed:
        click.echo(f"{statement};")
