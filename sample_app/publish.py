"""Puts the flights into the stream; run again it adds nothing, because each flight has an id of its own."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any

from emsworker import Ems, Outgoing, Receipt
from emsworker.core.model import TopicKind
from emsworker.core.servers import parse_servers, place
from emsworker.store.topics import create_topic
from sample_app.app import app as sample
from sample_app.data import read_flights
from sample_app.malformed import malformed_after
from sample_app.settings import CONFIG, FLIGHTS, KEEP_S, PARTITIONS

_CHUNK = 4000


def prepare(app: Ems) -> None:
    """Create the topics with their partitions, and their groups, so that the groups begin with the first message."""
    servers = parse_servers(app.settings.servers)
    topics: list[dict[str, Any]] = [{"name": name, "partitions": count} for name, count in PARTITIONS.items()]
    for topic in (*topics, {"name": CONFIG, "kind": TopicKind.BROADCAST}):
        where = app.streams.server(place(topic["name"], servers)).database
        where.call(partial(create_topic, retention_s=KEEP_S, **topic))
    for route in sample.registry.routes.values():
        catalog = app.streams.kept_by(route.topic).catalog
        catalog.group(catalog.topic(route.topic), route.group, route.filter, route.order)


def publish(app: Ems, limit: int | None = None) -> Iterator[tuple[int, int]]:
    """Send every flight, its tail number as key and its airline as tag, and the malformed rows among them.

    Yields after each chunk how many messages were sent and how many were new.

    Args:
        app: whose stream it is.
        limit: at most so many flights.
    """
    with ThreadPoolExecutor(1) as sender:  # the next chunk is read while one is sent; one thread keeps their order
        sent: Future[list[Receipt]] | None = None
        messages = _read_messages(limit)
        while chunk := list(islice(messages, _CHUNK)):
            if sent is not None:
                yield _count(sent.result())
            sent = sender.submit(app.send_many, FLIGHTS, chunk)
        if sent is not None:
            yield _count(sent.result())


def _read_messages(limit: int | None) -> Iterator[Outgoing]:
    for number, (uid, flight) in enumerate(read_flights(limit), 1):
        yield Outgoing(FLIGHTS, flight, key=flight["tailnum"], tag=flight["carrier"], uid=uid)
        malformed = malformed_after(number, uid, flight)
        if malformed is not None:
            yield Outgoing(FLIGHTS, malformed.body, uid=malformed.uid)


def _count(receipts: list[Receipt]) -> tuple[int, int]:
    return len(receipts), sum(receipt.created for receipt in receipts)
