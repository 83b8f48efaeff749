"""``ems tasks``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_groups, complete_topics
from emsworker.console.dialogue import as_far_as_allowed, first_of
from emsworker.console.options import common_options, duration_option, most_option, stream_options
from emsworker.console.output import print_done, print_rows
from emsworker.console.streams import open_stream
from emsworker.core.counted import Estimate, counted
from emsworker.core.durations import span_text

if TYPE_CHECKING:
    from emsworker.admin.tasks import TaskView


@click.group()
@stream_options
def tasks() -> None:
    """List the tasks of groups with what they ran and what waits; pause and resume single ones."""


@tasks.command("list")
@click.argument("topic", required=False, shell_complete=complete_topics)
@duration_option("--within", help="Figures of this time, in steps of ten minutes, at most a day", default="1h")
@most_option
@common_options
def list_(topic: str | None, within: float, limit: int, as_json: bool) -> None:
    """List the tasks of TOPIC, or of all groups: those with which workers have started.

    WAITING counts messages that no client has claimed, and those of a paused task. If there are more than are looked
    at, it is estimated from a sample, and shown as ~12,000. RUNNING counts threads.

    RUNS, FAILED, RETRIED and DEAD, the percentiles (p50/p95/p99) of how long messages WAITED before their first run and
    of how long runs TOOK, each within a fifth, CPU (mean processor time of a run; not of coroutines) and the last ERROR
    are there if workers run with EMS_TASK_FIGURES_S, such as 10.
    """
    admin = open_stream().looking()
    found, _ = as_far_as_allowed(
        lambda details: (admin.tasks.list(topic, within_s=within, details=details), details), "headers and errors"
    )
    views = first_of(found, limit, "task", "that are first by name")
    rows = [_record(view) if as_json else _row(view) for view in views]
    columns = ["topic", "group", "task", "state", "waiting", "running", "runs", "failed", "dead"]
    columns += ["waited", "took", "cpu", "error"]
    spare = ["cpu", "dead", "error", "topic", "waited"]
    print_rows(rows, columns, as_json, "No worker has started with a task.", spare=spare)


def _record(view: TaskView) -> dict[str, Any]:
    about = asdict(view) | {"estimated": isinstance(view.waiting, Estimate)}
    waits, runs = (dict(zip(("p50", "p95", "p99"), about.pop(name), strict=False)) for name in ("waits_s", "runs_s"))
    return about | {"waited_s": waits, "took_s": runs}


def _row(view: TaskView) -> dict[str, Any]:
    return asdict(view) | {
        "task": view.task or "(subscription)",
        "state": "paused" if view.paused else "",
        "waited": "/".join(map(span_text, view.waits_s)),
        "took": "/".join(map(span_text, view.runs_s)),
        "cpu": "" if view.cpu_s is None else span_text(view.cpu_s),
    }


@tasks.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("group", shell_complete=complete_groups)
@click.argument("task")
@common_options
def pause(topic: str, group: str, task: str, as_json: bool) -> None:
    """Pause TASK in GROUP of TOPIC; the group's other tasks go on.

    Workers follow within a second, and finish what they have claimed before. They put the messages of the task aside,
    as retries with no attempt charged. In a group that runs in order, later messages of the key, or of the partition,
    wait behind them.
    """
    with open_stream().changing("pause task", f"{topic}/{group}/{task}") as admin:
        admin.tasks.pause(topic, group, task)
    print_done({"paused": task, "topic": topic, "group": group}, f"Paused {task} in {topic}/{group}.", as_json)


@tasks.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("group", shell_complete=complete_groups)
@click.argument("task")
@common_options
def resume(topic: str, group: str, task: str, as_json: bool) -> None:
    """Resume TASK in GROUP of TOPIC: what was put aside is due at once. Again is no error."""
    with open_stream().changing("resume task", f"{topic}/{group}/{task}") as admin:
        due = admin.tasks.resume(topic, group, task)
    done = {"resumed": task, "topic": topic, "group": group, "due": due}
    print_done(done, f"Resumed {task} in {topic}/{group}; {counted(due, 'message')} due now.", as_json)
