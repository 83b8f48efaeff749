"""``ems migrate`` and ``ems check``."""

from __future__ import annotations

import click

from emsworker.console.options import common_options
from emsworker.console.output import print_done, print_rows
from emsworker.console.streams import given_addresses, open_stream, stream_of
from emsworker.core.counted import counted


@click.command()
@click.option(
    "--with",
    "names",
    metavar="EXTENSION",
    multiple=True,
    help="Create the tables of this extension too, such as celery; repeatable. Existing ones are brought up to date.",
)
@common_options
def migrate(names: tuple[str, ...], as_json: bool) -> None:
    """Create the tables of EMS, or bring them up to date.

    Harmless when repeated, and when two do it at once. Tables that were dropped are put back empty, unless they hold
    the stream itself; a table of somebody else that has the name of one of EMS is refused by name. The database itself
    must exist; the user needs CREATE, ALTER and INDEX on it besides SELECT, INSERT, UPDATE and DELETE.
    """
    from emsworker.core.extension import extension
    from emsworker.store import current_version, extension_versions, put_back
    from emsworker.store import migrate as apply

    more = [extension(name) for name in names]
    database = open_stream().database(check_schema=False)
    before = database.call(extension_versions)
    applied = database.call(lambda session: apply(session, more))
    restored = database.call(put_back)
    version = database.call(current_version)
    found = database.call(extension_versions)
    if restored:
        sentence = (
            f"Put back, empty: {', '.join(restored)}; what they held is lost. The tables are of version {version}."
        )
    elif applied:
        sentence = f"The tables are of version {version} now (applied: {', '.join(map(str, applied))})."
    elif found == before:
        sentence = f"The tables are of version {version} already; nothing to do."
    else:
        sentence = f"The tables are of version {version} already."
    for name in sorted(found.keys()):
        if found[name] != before.get(name):
            sentence += f" Those of {name} are of version {found[name]} now."
    report = {"applied": applied, "restored": restored, "version": version, "extensions": found}
    print_done(report, sentence, as_json)


@click.command()
@click.option(
    "--role",
    metavar="ROLE",
    help="Whose privileges the user must have, see `ems grants`; by default those of any one role.",
)
@common_options
@click.pass_context
def check(ctx: click.Context, role: str | None, as_json: bool) -> None:
    """Check everything around EMS and report every problem at once.

    Looks at the settings, the connection, the server's version and durability settings, the user's privileges (each is
    tried, nothing is changed), the clocks, the schema and Redis. Ends with exit code 1 if there is any error; warnings
    are risks that EMS can live with.
    """
    from emsworker.admin.check import Severity
    from emsworker.admin.check import check as look
    from emsworker.core.extension import extensions
    from emsworker.store import Grants

    known = Grants(extensions().values()).roles
    if role is not None and role not in known:
        raise click.BadParameter(f"{role!r} is not one of {', '.join(known)}.", param_hint="--role")
    url, redis_url = _addresses()
    findings = look(url, redis_url, role=role)
    rows = [{"severity": f.severity.value, "name": f.name, "value": f.value, "fix": f.fix} for f in findings]
    print_rows(rows, ["severity", "name", "value", "fix"], as_json, "nothing was checked")
    count = {severity: sum(f.severity is severity for f in findings) for severity in Severity}
    if not as_json:
        click.echo(
            f"{counted(count[Severity.ERROR], 'error')}, {counted(count[Severity.WARNING], 'warning')}.", err=True
        )
    ctx.exit(1 if count[Severity.ERROR] else 0)


def _addresses() -> tuple[str | None, str | None]:
    """The stream to check; the check itself reports wrong settings."""
    from emsworker.core.config import Settings
    from emsworker.core.errors import ConfigError

    given = given_addresses()
    try:
        settings = Settings.load(**given)
    except ConfigError:
        return given.get("url"), given.get("redis_url")
    settings = (open_stream() if settings.servers else stream_of(settings)).settings
    return settings.url, settings.redis_url
