"""Writes the ends of the calls of flows down, with the acks of these calls."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from emsworker.extending.database import Packet, Session, identifier, stream_id
from emsworker.extending.values import ResultRow
from emsworker.flows.places import CallPlace, end_of, read_place
from emsworker.flows.rows import CallEnd
from emsworker.flows.store.far_ends import send_ends
from emsworker.flows.store.flow_store import end_statements

_streams: WeakKeyDictionary[Session, str] = WeakKeyDictionary()


def follow(packet: Packet, results: Sequence[ResultRow], topic_id: int, group: str) -> None:
    """Record the ends of calls with their acks, and wake the flows that have waited for the last one of a step.

    The ends of calls that a flow of another server has made are sent there.
    """
    ends: dict[tuple[int, int], list[CallEnd]] = {}
    far: list[tuple[CallPlace, ResultRow]] = []
    for row in results:
        if (place := read_place(row)) is None:
            continue
        if place.stream != _stream_of(packet.session):
            far.append((place, row))
        else:
            ends.setdefault((place.flow, place.step), []).append(end_of(row, place.number))
    for (flow_id, step), those in sorted(ends.items()):
        for statement in end_statements(identifier(packet.session.database), flow_id, step, those):
            packet.add(statement)
    send_ends(packet, topic_id, group, far)


def _stream_of(session: Session) -> str:
    """Return the identity of the stream of a session, which is asked once."""
    found = _streams.get(session)
    if found is None:
        found = _streams[session] = stream_id(session)
    return found
