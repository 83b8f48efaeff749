"""``ems pipeline``: the jobs of :mod:`emsworker.spark.jobs` as commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from emsworker.spark.jobs.command import EPILOG, JAVA_LOG, Pipeline

from .common import TRACEBACK, URL, stream_options


class Jobs(Pipeline):
    """Gives each job the options of every command."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Make the command of a job."""
        command = super().get_command(ctx, cmd_name)
        if command is None or command.callback is None:
            return command
        command.callback = _checking(command.callback)
        return stream_options(command)


def _checking(callback: Callable[..., Any]) -> Callable[..., Any]:
    def checked(**given: Any) -> Any:
        meta = click.get_current_context().meta
        if URL in meta:
            raise click.UsageError("--url would not reach Spark's executors; set EMS_URL, or name a --profile.")
        meta[JAVA_LOG] = meta.get(TRACEBACK, False)
        return callback(**given)

    return checked


@click.command(cls=Jobs, epilog=EPILOG)
@stream_options
def pipeline() -> None:
    """Run a job of the data pipeline on Spark: reports, archive, restore and others.

    Every job runs on this machine by default, and on a cluster by --master or spark-submit.
    """
