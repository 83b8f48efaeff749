"""A setting that is changed while the workers run: each of their processes hears of it, and goes by it at once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from emsworker import Ems
from sample_app import stream, tables
from sample_app.settings import CONFIG, TITLE
from sample_app.tables import Connection

_PATIENCE_S = 30.0
_POLL_S = 0.02

current = {"title": TITLE}


class ConfigFailed(Exception):
    """Some process has not heard of a setting."""


def take_over(changes: Mapping[str, Any]) -> None:
    """Go by changed settings; those that are not known are for other programs."""
    current.update({name: value for name, value in changes.items() if name in current})


def announce(
    app: Ems, connections: Sequence[Connection], title: str, workers: Mapping[str, int], processes: int
) -> float:
    """Change the title of the summary everywhere.

    Args:
        connections: to the servers that have the topic of settings and its handlers' tables.
        workers: their names, and how many clients each has there when it is up.
        processes: how many of them in all must hear it.

    Returns:
        after how many seconds the last of them went by it.

    Raises:
        ConfigFailed: it takes too long.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while any(stream.count_clients(connections, name) < count for name, count in workers.items()):
        _wait(deadline, "not all workers are up")  # the last one was started not long ago
    sent = time.monotonic()
    app.send(CONFIG, {"title": title})
    while (heard := tables.count_titles(connections, title)) < processes:
        _wait(deadline, f"only {heard} of {processes} processes have heard of the new title")
    return time.monotonic() - sent


def _wait(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise ConfigFailed(f"{what} after {_PATIENCE_S:g} s")
    time.sleep(_POLL_S)
