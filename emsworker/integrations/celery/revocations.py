"""Revocations of tasks for later, which outlast the workers that were told of them.

Celery's workers keep in memory which tasks were revoked, for three hours, and a task with an ETA waits in the stream
for as long as it says. So a program that revokes a task by its id writes that down as well, and a worker that gets a
task with an ETA asks: only then, so that other tasks cost nothing more.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from kombu.utils import json

from emsworker.extending.apps import MysqlBroker
from emsworker.integrations.celery.messages import Envelope, Published
from emsworker.integrations.celery.store import revocations

_CONTROL = ".pidbox"  # the end of the name of the exchange of commands


class Revocations:
    """The revoked tasks of a stream; thread-safe."""

    def __init__(self, broker: MysqlBroker) -> None:
        self._broker = broker

    def note(self, message: Published, exchange: str) -> None:
        """Write down what a command revokes, before it is sent; nothing of any other message.

        Raises:
            StoreUnavailable: it was not written; the command must not be sent either.
        """
        if exchange.endswith(_CONTROL) and (task_ids := _revoked_by(message)):
            self._broker.database.call(lambda session: revocations.add(session, task_ids))

    def find(self, envelopes: Collection[Envelope]) -> set[str]:
        """Return the ids of those tasks that were for later, and were revoked.

        Raises:
            StoreUnavailable: it is not known.
        """
        headers = [one.headers for one in envelopes if one.headers.get("eta") is not None]
        task_ids = [task_id for one in headers if isinstance(task_id := one.get("id"), str)]
        if not task_ids or "celery.worker.state" not in sys.modules:  # a program that is no worker runs none
            return set()
        return self._broker.database.call(lambda session: revocations.find(session, task_ids))


def tell_worker(task_id: str) -> None:
    """Have the worker of this process know of a revoked task, as if it had been told by a command."""
    from celery.worker import state

    state.revoked.add(task_id)


def _revoked_by(message: Published) -> list[str]:
    """Return the ids that a command to all workers revokes."""
    try:
        command: Any = json.loads(message["body"])
        if command.get("method") != "revoke" or command.get("destination"):
            return []
        given = command["arguments"]["task_id"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # a reply, or a command of others
        return []
    found = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    fitting = (one for one in found if isinstance(one, str) and len(one.encode()) <= revocations.MOST_BYTES)
    return list(dict.fromkeys(fitting))
