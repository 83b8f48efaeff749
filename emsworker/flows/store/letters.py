"""The dead letters of a flow that is run again: its former calls must not run once more when somebody requeues them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from emsworker.extending.database import Session, Statements
from emsworker.extending.stream import delete_dead, list_groups, requeue
from emsworker.extending.values import Group
from emsworker.flows.places import CallPlace

_SQL = Statements(__name__)
_UIDS = 500

Letter = tuple[int, bytes]
"""The number of a topic, and the uid of a message."""


def find_letters(session: Session, stream: str, flow: int, first: int) -> Iterator[Letter]:
    """Yield the messages that may be dead letters of what a flow has called.

    Args:
        stream: its identity.
        first: number of the first step that is forgotten.
    """
    args = {"flow_id": flow, "step": first, "prefix": f"{flow}.%"}
    for topics, step, number in session.rows(_SQL.list_failed_calls, args):
        for topic in topics.split(","):
            yield int(topic), CallPlace(stream, flow, step, number).uid
    for child, parent, topic, owner in session.rows(_SQL.list_failed_children, args):
        if int(parent.split(".")[1]) >= first:
            yield topic, owner
            yield from find_letters(session, stream, child, 0)


def find_dead(session: Session, letters: Iterable[Letter]) -> list[Letter]:
    """Return those of some messages that are dead letters on this server."""
    return [(topic, uid) for topic, uid, *_ in _list_dead(session, letters)]


def delete_letters(session: Session, letters: Iterable[Letter]) -> None:
    """Delete those of some messages that are dead letters on this server."""
    for group, places in _by_group(session, letters):
        delete_dead(session, group, places, lambda _: None)


def requeue_letters(session: Session, letters: Iterable[Letter]) -> None:
    """Run those of some messages again that are dead letters on this server."""
    for group, places in _by_group(session, letters):
        requeue(session, group, places, lambda _: None)


def _by_group(session: Session, letters: Iterable[Letter]) -> Iterator[tuple[Group, list[tuple[int, int]]]]:
    places: dict[int, list[tuple[int, int]]] = {}
    for _, _, group_id, partition, offset in _list_dead(session, letters):
        places.setdefault(group_id, []).append((partition, offset))
    for group in list_groups(session, ids=places) if places else ():
        yield group, places[group.id]


def _list_dead(session: Session, letters: Iterable[Letter]) -> Iterator[tuple[int, bytes, int, int, int]]:
    for topic, those in groupby(sorted(set(letters)), key=lambda letter: letter[0]):
        while uids := [uid for _, uid in islice(those, _UIDS)]:
            for row in session.rows(_SQL.find_dead, {"topic_id": topic, "uids": uids}):
                yield topic, *row
