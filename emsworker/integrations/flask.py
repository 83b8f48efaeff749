"""Flask: settings from its configuration, ``flask ems ...``, and an application context around each run.

Needs ``pip install 'emsworker[flask]'``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from emsworker.extending.apps import Ems, Middleware, RunBracket
from emsworker.extending.declaration import require
from emsworker.extending.errors import AppNotFound
from emsworker.extending.processes import fork_blocked
from emsworker.extending.settings import Settings, options_of, problems_of, raise_problems

if TYPE_CHECKING:
    from flask import Flask


def init_app(app: Flask, ems: Ems) -> None:
    """Join a Flask application and an app.

    Settings are taken from ``app.config``: ``EMS_URL`` is the setting ``url``, and so on. Tasks and subscriptions run
    inside an application context, so ``current_app`` and extensions such as Flask-SQLAlchemy work in them. The command
    ``flask ems`` is ``ems`` for this application: ``flask --app shop ems worker``.

    Args:
        app: the application.
        ems: the app, which has not sent anything yet.

    Raises:
        ConfigError: a setting in ``app.config`` is unknown or wrong.
        ExtraMissing: Flask is not installed.
    """
    require("flask", __name__)
    given = {
        name[4:].lower(): tuple(value) if isinstance(value, list) else value
        for name, value in app.config.items()
        if name.startswith("EMS_")
    }
    raise_problems(problems_of("app.config", given, options_of(Settings)))
    if any(getattr(ems.settings, name) != value for name, value in given.items()):
        ems.reconfigure(**given)
    for middleware in ems.middleware:
        if isinstance(middleware, AppContext):
            middleware.app = app  # another one, made by the same factory
            break
    else:
        ems.add_middleware(AppContext(app))
    app.extensions["ems"] = ems
    app.cli.add_command(_command)


class AppContext(Middleware):
    """Runs every handler inside an application context of Flask.

    Args:
        app: the application.
    """

    def __init__(self, app: Flask) -> None:
        self.app = app

    @contextmanager
    def around_run(self, run: RunBracket) -> Iterator[None]:
        """Push a context of its own around a run."""
        with self.app.app_context():
            yield


@click.command("ems", add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def _command(ctx: click.Context, arguments: tuple[str, ...]) -> None:
    """Run the ems command for this application."""
    from flask.cli import ScriptInfo

    info = ctx.ensure_object(ScriptInfo)
    ems = _ems_in(info)
    if info.app_import_path:
        os.environ["FLASK_APP"] = info.app_import_path  # for the processes of a worker
    os.environ["EMS_APP"] = f"{__name__}:ems"
    for name, url in (("EMS_URL", ems.settings.url), ("EMS_REDIS_URL", ems.settings.redis_url)):
        if url is not None:
            os.environ[name] = url
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "emsworker", *arguments])


def _ems_in(info: Any) -> Ems:
    app: Flask = info.load_app()
    ems = app.extensions.get("ems")
    if not isinstance(ems, Ems):
        raise AppNotFound(f"the Flask application {app.name!r} has no Ems; call init_app(app, ems) where it is made")
    return ems


def __getattr__(name: str) -> Ems:
    """Return the app of the Flask application that ``FLASK_APP`` names: ``-A emsworker.integrations.flask:ems``."""
    if name != "ems":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with fork_blocked:
        from flask.cli import ScriptInfo

    return _ems_in(ScriptInfo(app_import_path=os.environ.get("FLASK_APP")))
