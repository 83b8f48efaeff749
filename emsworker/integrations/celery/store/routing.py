"""Exchanges, queues and bindings: where messages that are published to an exchange go."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from emsworker.extending.database import Session, Statements

_SQL = Statements(__name__)


class ExchangeKind(StrEnum):
    """The rule by which an exchange compares routing keys: equal, by pattern, or not at all."""

    DIRECT = "direct"
    TOPIC = "topic"
    FANOUT = "fanout"


class TargetKind(StrEnum):
    """The kind of a binding's target."""

    QUEUE = "queue"
    EXCHANGE = "exchange"


@dataclass(frozen=True)
class Exchange:
    """An exchange.

    Attributes:
        bus: the broadcast topic that gets a copy of each message, for queues that live in one process; ``None`` if
            there never was such a queue.
    """

    name: str
    kind: ExchangeKind
    bus: str | None = None


@dataclass(frozen=True)
class Queue:
    """A queue that is kept in a topic.

    Attributes:
        message_ttl_s: seconds after which its messages are no longer delivered, or ``None``.
        expires_s: seconds without use after which it is deleted, or ``None``.
    """

    name: str
    topic: str
    message_ttl_s: float | None = None
    expires_s: float | None = None


@dataclass(frozen=True)
class Binding:
    """A way from an exchange to a queue, or to another exchange."""

    exchange: str
    routing_key: str
    kind: TargetKind
    target: str

    @property
    def args(self) -> dict[str, Any]:
        """The parameters of the statements."""
        return {
            "exchange": self.exchange.encode(),
            "routing_key": self.routing_key.encode(),
            "kind": self.kind,
            "target": self.target.encode(),
        }


def declare_exchange(session: Session, name: str, kind: ExchangeKind) -> Exchange:
    """Create an exchange, or return the existing one, which may be of another kind."""
    session.change(_SQL.declare_exchange, {"name": name.encode(), "kind": kind})
    return get_exchange(session, name) or Exchange(name, kind)


def get_exchange(session: Session, name: str) -> Exchange | None:
    rows = session.rows(_SQL.get_exchange, {"name": name.encode()})
    return Exchange(name, ExchangeKind(rows[0][1]), rows[0][2]) if rows else None


def set_bus(session: Session, name: str, bus: str) -> None:
    """Give an exchange a broadcast topic, if it has none."""
    session.change(_SQL.set_bus, {"name": name.encode(), "bus": bus})


def delete_exchange(session: Session, name: str) -> None:
    """Delete an exchange and its bindings."""

    def work(session: Session) -> None:
        session.execute(_SQL.unbind_exchange, {"exchange": name.encode()})
        session.execute(_SQL.unbind_target, {"kind": TargetKind.EXCHANGE, "target": name.encode()})
        session.execute(_SQL.delete_exchange, {"name": name.encode()})

    session.transaction(work)


def declare_queue(session: Session, queue: Queue) -> None:
    """Create a queue, or change the settings of the existing one."""
    values = {"message_ttl_ms": _ms(queue.message_ttl_s), "expires_ms": _ms(queue.expires_s)}
    session.change(_SQL.declare_queue, {"name": queue.name.encode(), "topic": queue.topic} | values)


def get_queue(session: Session, name: str) -> Queue | None:
    rows = session.rows(_SQL.get_queue, {"name": name.encode()})
    return _queue(rows[0]) if rows else None


def list_queues(session: Session) -> list[Queue]:
    """List all queues by name."""
    return [_queue(row) for row in session.rows(_SQL.list_queues)]


def use_queues(session: Session, names: list[str]) -> None:
    """Note that queues are in use, so that they do not expire."""
    session.change(_SQL.use_queues, {"names": [name.encode() for name in sorted(names)]})


def list_unused(session: Session) -> list[Queue]:
    """List the queues that have expired."""
    return [_queue(row) for row in session.rows(_SQL.list_unused)]


def delete_queue(session: Session, name: str, *, unused: bool = False) -> bool:
    """Delete a queue and its bindings, but not its topic; return false if it is not there.

    Args:
        unused: delete it only if it has expired.
    """

    def work(session: Session) -> bool:
        statement = _SQL.delete_unused if unused else _SQL.delete_queue
        if not session.execute(statement, {"name": name.encode()}).affected:
            return False
        session.execute(_SQL.unbind_target, {"kind": TargetKind.QUEUE, "target": name.encode()})
        return True

    return session.transaction(work)


def bind(session: Session, binding: Binding) -> None:
    """Add a binding, if it is not there."""
    session.change(_SQL.bind, binding.args)


def unbind(session: Session, binding: Binding) -> None:
    """Delete a binding, if it is there."""
    session.change(_SQL.unbind, binding.args)


def find_ways(session: Session, name: str) -> tuple[Exchange, list[Binding]] | None:
    """Return the exchange of that name and its bindings, by one statement; ``None`` if there is none."""
    rows = session.rows(_SQL.find_ways, {"name": name.encode()})
    bindings = [_binding(row[0], *row[3:]) for row in rows if row[5] is not None]
    return (Exchange(name, ExchangeKind(rows[0][1]), rows[0][2]), bindings) if rows else None


def list_bindings(session: Session) -> list[Binding]:
    """List the bindings of all exchanges."""
    return [_binding(*row) for row in session.rows(_SQL.list_bindings)]


def _binding(exchange: bytes, routing_key: bytes, kind: str, target: bytes) -> Binding:
    return Binding(exchange.decode(), routing_key.decode(), TargetKind(kind), target.decode())


def _queue(row: tuple[Any, ...]) -> Queue:
    name, topic, ttl_ms, expires_ms = row
    return Queue(name.decode(), topic, _s(ttl_ms), _s(expires_ms))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _s(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000
