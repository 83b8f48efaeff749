"""``ems grants``."""

from __future__ import annotations

import click

from emsworker.store.grants import ROLES

from .common import open_stream, stream_options


@click.command()
@click.argument("role", type=click.Choice(ROLES))
@click.option("--user", "account", required=True, metavar="USER@HOST", help="Who gets them; the user must exist.")
@click.option("--database", metavar="NAME", help="The stream's database; that of --url or EMS_URL.")
@stream_options
def grants(role: str, account: str, database: str | None) -> None:
    """Print the GRANT statements that ROLE needs, and no more; nothing is changed.

    A producer sends; a worker runs tasks, does the beat's duties and sends; a reader looks; an admin does the rest.
    """
    from emsworker.core.url import DatabaseUrl
    from emsworker.store.grants import statements

    name = database or DatabaseUrl.parse(open_stream().url).database
    for statement in statements(role, name, account):
        click.echo(f"{statement};")
