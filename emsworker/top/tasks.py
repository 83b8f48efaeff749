"""The screen of ``ems top`` with the tasks of all groups."""

from __future__ import annotations

from typing import Any

from emsworker.extending.administration import TaskView
from emsworker.extending.console import Row
from emsworker.extending.values import span_text
from emsworker.top.screens import GroupScreen, Reader, Screen


class TasksScreen(Screen):
    """All tasks with what waits, runs and failed, and the percentiles of the last ten minutes."""

    def __init__(self) -> None:
        columns = ("topic", "group", "task", "state", "waiting", "running", "runs", "failed", "waited", "took", "cpu")
        spare = ("cpu", "waited", "topic", "failed")
        super().__init__("Tasks", (*columns, "error"), spare, ("server", "topic", "group", "task"), sort="waiting")

    def read(self, reader: Reader) -> list[dict[str, Any]]:
        rows = [_row(name, view) for name, view in reader.tasks()]
        counted = any(row["runs"] for row in rows)
        self.facts = "in the last ten minutes" if counted else "no worker counts runs by task (EMS_TASK_FIGURES_S)"
        if reader.several:
            self.columns = ("server", *(column for column in self.columns if column != "server"))
        return rows

    def opens(self, row: Row) -> Screen | None:
        return GroupScreen(row["server"], row["topic"], row["group"])


def _row(server: str, view: TaskView) -> dict[str, Any]:
    return {
        "server": server,
        "topic": view.topic,
        "group": view.group,
        "task": view.task or "(subscription)",
        "state": "paused" if view.paused else "",
        "waiting": view.waiting,
        "running": view.running,
        "runs": view.runs,
        "failed": view.failed,
        "waited": "/".join(map(span_text, view.waits_s)),
        "took": "/".join(map(span_text, view.runs_s)),
        "cpu": "" if view.cpu_s is None else span_text(view.cpu_s),
        "error": view.error,
    }
