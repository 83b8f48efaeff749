"""Cancelling messages by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from emsworker.core.errors import unknown_message
from emsworker.core.ids import parse_uid
from emsworker.core.model import Topic
from emsworker.store.engine.database import Database
from emsworker.store.groups.cancel import StateAtCancel, cancel
from emsworker.store.topics import list_topics

Notify = Callable[[Iterable[int]], object]


def cancel_message(
    database: Database, topics: Iterable[Topic], message_id: str, notify: Notify = lambda topic_ids: None
) -> StateAtCancel:
    """Cancel a message in the first of these topics that has it.

    Args:
        notify: called with the topic if the message runs: its worker looks at once.

    Raises:
        UnknownMessage: none of them has it.
        InvalidName: ``message_id`` is not a message id.
    """
    uid = parse_uid(message_id)
    names = []
    for topic in topics:
        found = database.call(partial(cancel, topic_id=topic.id, uid=uid))
        if found is StateAtCancel.RUNNING:
            notify([topic.id])
        if found is not None:
            return found
        names.append(topic.name)
    raise unknown_message(names, message_id)


def cancel_sent(database: Database, message_id: str, topic: str | None, notify: Notify) -> bool:
    """Cancel a message that was sent; see :meth:`Ems.cancel`."""
    topics = [one for one in database.call(list_topics) if topic in (None, one.name)]
    return cancel_message(database, topics, message_id, notify) is not StateAtCancel.FINISHED
