"""``ems audit``."""

from __future__ import annotations

from dataclasses import asdict

import click

from emsworker.console.options import COUNT, common_options
from emsworker.console.output import print_rows
from emsworker.console.streams import open_stream


@click.command()
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number.")
@click.option("--after", metavar="ID", help="Continue after this action.")
@common_options
def audit(limit: int, after: str | None, as_json: bool) -> None:
    """List what people changed by the dashboard, or cancelled, the latest first."""
    from emsworker.admin.audit import Audit

    found = Audit(open_stream().database()).list(after=after, limit=limit)
    rows = [asdict(one) | {"id": one.id, "action_id": one.id} for one in found]
    print_rows(
        rows, ["begun_at", "actor", "action", "target", "changed", "detail"], as_json, "Nobody changed anything."
    )
