"""The branches of a flow of coroutines: its function, and each task of asyncio that this or another branch has begun.

Branches go on side by side, in an order that differs from run to run, so a step is known by its place in its branch. A
branch is known by its parent and by its place among the tasks of that parent, in the order in which they first ask for
something. Within one branch, and so among its children, that order is that of the code.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

_present: ContextVar[Branch | None] = ContextVar("ems_flow_branch", default=None)


@dataclass(slots=True)
class Branch:
    """A branch of one run.

    Attributes:
        path: places with points between, as ``1.0``; that of the function itself is empty.
        children: how many it has begun that have asked for something.
    """

    path: str
    task: asyncio.Task[Any] | None
    children: int = 0


def open_root() -> None:
    """Let the present task be the function of a flow."""
    _present.set(Branch("", asyncio.current_task()))


def enter() -> None:
    """Notice the branch of the present task, which is new if it has its context from another one."""
    parent, task = _present.get(), asyncio.current_task()
    if parent is not None and parent.task is not task:
        _present.set(Branch(f"{parent.path}.{parent.children}".lstrip("."), task))
        parent.children += 1


def present_path() -> str:
    """Return the path of the present branch; of a plain function it is empty."""
    branch = _present.get()
    return "" if branch is None else branch.path


def is_within(path: str, branch: str) -> bool:
    """Return whether a path is that of a branch, or of one below it."""
    return not branch or path == branch or path.startswith(f"{branch}.")
