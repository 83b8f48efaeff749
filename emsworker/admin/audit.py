"""Audit of what people change through EMS, behind ``ems audit`` and the dashboard."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as numbers

from emsworker.core.errors import ConfigError, InvalidName, Problem
from emsworker.core.ids import new_uid, parse_uid, uid_text
from emsworker.store.cluster import audit as store
from emsworker.store.cluster.audit import AuditRow
from emsworker.store.engine.database import Database
from emsworker.store.groups.cancel import StateAtCancel


def count_changed(result: object) -> int:
    """Return the number of things that a transaction changed: its result, if that is a number, or else 1 or 0."""
    return abs(result) if isinstance(result, int) else int(result is not None)


def name_of_system_user() -> str:
    """Return who runs this process, as ``user@host``; from the system, not from variables that anybody can set."""
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container's user often has no name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


CANCEL = "cancel message"


def cancel_target(topic: str, message_id: str) -> str:
    """Return the target of a cancellation, by which a trace finds it: the id is in its usual notation.

    Raises:
        InvalidName: ``message_id`` is not a message id.
    """
    return f"{topic} {uid_text(parse_uid(message_id))}"


def count_cancelled(result: object) -> int:
    """Return 1 if a cancellation changed anything."""
    return int(result in (StateAtCancel.DELAYED, StateAtCancel.WAITING, StateAtCancel.RUNNING))


class Audit:
    """Actions of people on a stream.

    Args:
        database: the database of the stream; the same object as that of the changes to record.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def record(
        self, actor: str, action: str, target: str, detail: str = "", count: Callable[[object], int] = count_changed
    ) -> Iterator[str]:
        """Record what this thread changes in the block: each transaction writes a row of its own.

        A change that is rolled back leaves no row.

        Args:
            actor: who does it.
            action: what is done.
            target: to what.
            detail: the options.
            count: the number of things that a transaction changed, from its result.

        Yields:
            the id of the action.
        """
        action_id, session = new_uid(), self._database.thread_session()
        steps = numbers(1)  # one that was rolled back leaves its number out

        def note(result: object) -> None:
            if changed := count(result):
                texts = {"actor": actor, "action": action, "target": target, "detail": detail}
                store.note_step(session, action_id, next(steps), changed, **texts)

        session.before_commit = note
        try:
            yield uid_text(action_id)
        finally:
            session.before_commit = None

    def list(self, *, after: str | None = None, limit: int = 50) -> tuple[AuditRow, ...]:
        """Return a page of the actions, the latest first.

        Args:
            after: the id of the last action of the page before.

        Raises:
            ConfigError: ``after`` is not the id of an action.
        """
        try:
            before = store.LATEST if after is None else parse_uid(after)
        except InvalidName:
            raise ConfigError([Problem("after", repr(after), "is not the id of an action")]) from None
        return tuple(self._database.call(lambda session: store.list_actions(session, before, limit)))

    def get(self, action_id: str) -> AuditRow | None:
        """Return an action by its id, or ``None``.

        Raises:
            InvalidName: ``action_id`` is not an id.
        """
        raw = parse_uid(action_id)
        return self._database.call(lambda session: store.get_action(session, raw))
