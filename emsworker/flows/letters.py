"""Deletes the dead letters of a flow that is run again: requeued later, they would run its former calls once more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from emsworker.extending.database import Session, Statements
from emsworker.extending.stream import delete_dead, list_groups
from emsworker.flows.places import CallPlace

_SQL = Statements(__name__)
_UIDS = 500

Letter = tuple[int, bytes]
"""The number of a topic, and the uid of a message."""


def find_letters(session: Session, stream: str, flow: int, first: int) -> Iterator[Letter]:
    """Yield the messages of a flow that may be dead letters: its own, and those of what it has called.

    Args:
        stream: its identity.
        first: number of the first step that is forgotten.
    """
    args = {"flow_id": flow, "step": first, "prefix": f"{flow}.%"}
    yield from session.rows(_SQL.get_message, args)
    for topics, step, number in session.rows(_SQL.list_failed_calls, args):
        for topic in topics.split(","):
            yield int(topic), CallPlace(stream, flow, step, number).uid
    for child, parent in session.rows(_SQL.list_failed_children, args):
        if int(parent.split(".")[1]) >= first:
            yield from find_letters(session, stream, child, 0)


def delete_letters(session: Session, letters: Iterable[Letter]) -> None:
    """Delete those of some messages that are dead letters on this server."""
    rest = iter(sorted(letters))
    while part := list(islice(rest, _UIDS)):
        for topic in {topic for topic, _ in part}:
            uids = [uid for one, uid in part if one == topic]
            places: dict[int, list[tuple[int, int]]] = {}
            for group, partition, offset in session.rows(_SQL.find_dead, {"topic_id": topic, "uids": uids}):
                places.setdefault(group, []).append((partition, offset))
            for group in list_groups(session, topic_id=topic) if places else ():
                delete_dead(session, group, places.get(group.id, ()), lambda _: None)
