"""What happens to a flight: three groups read its topic, each at its own pace, and two more live on what they send."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emsworker import Message
from emsworker.task import BoundTask, Outgoing
from sample_app import gateway, tables
from sample_app.app import app
from sample_app.data import derived_id
from sample_app.settings import AIRCRAFT_EVENTS, BATCH, FLIGHTS, LATE_MIN, NOTIFICATIONS, seed

_SEED = seed()


@app.subscribe(FLIGHTS, "stats", transactional=True, batch=BATCH)
def keep_stats(transaction: Any, messages: Sequence[Message]) -> None:
    """Add a batch of flights to the sums per carrier and per route; they are committed with the batch's being done."""
    carriers: tables.Sums = {}
    routes: tables.Sums = {}
    for message in messages:
        flight = message.body
        cancelled = flight["dep_time"] is None
        values = (
            1,
            not cancelled,
            cancelled,
            flight["dep_delay"] or 0,
            flight["arr_delay"] or 0,
            int.from_bytes(message.uid[:4]),
        )
        _add(carriers, (flight["carrier"],), values)
        _add(routes, (flight["origin"], flight["dest"]), values)
    tables.add_carriers(transaction, carriers)
    tables.add_routes(transaction, routes)


@app.subscribe(FLIGHTS, "aircraft", batch=BATCH)
def tell_aircraft(messages: Sequence[Message]) -> None:
    """Send one event for each flight of a known aircraft, under its tail number and under an id of the flight's own.

    A batch that runs again after a crash sends the same ids, and the stream keeps the first.
    """
    events = [_aircraft_event(message) for message in messages if message.key is not None]
    app.send_many(AIRCRAFT_EVENTS, events)


def _aircraft_event(message: Message) -> Outgoing:
    flight = message.body
    kind = "flown" if flight["air_time"] is not None else "cancelled" if flight["dep_time"] is None else "diverted"
    event = {
        "tailnum": flight["tailnum"],
        "leg": flight["leg"],
        "kind": kind,
        "at": flight["time_hour"],
        "origin": flight["origin"],
        "dest": flight["dest"],
        "distance_mi": flight["distance"] if kind == "flown" else 0,
        "air_min": flight["air_time"] or 0,
    }
    return Outgoing(AIRCRAFT_EVENTS, event, key=message.key, uid=derived_id("event", message.id))


@app.subscribe(AIRCRAFT_EVENTS, "logbook", transactional=True, batch=BATCH)
def keep_logbook(transaction: Any, messages: Sequence[Message]) -> None:
    """Add a batch of events to the aircraft's logbooks."""
    aircraft: tables.Sums = {}
    for message in messages:
        event = message.body
        kind, leg = event["kind"], event["leg"]
        values = (
            kind == "flown",
            kind == "cancelled",
            kind == "diverted",
            event["distance_mi"],
            event["air_min"],
            leg,
        )
        sums = _add(aircraft, (event["tailnum"],), (*values, 0))
        sums[-1] = max(sums[-1], leg)
    tables.add_aircraft(transaction, aircraft)


def _add(sums: tables.Sums, key: tuple[str, ...], values: Sequence[int]) -> list[int]:
    known = sums.get(key)
    sums[key] = list(map(int, values)) if known is None else [a + b for a, b in zip(known, values, strict=True)]
    return sums[key]


@app.subscribe(FLIGHTS, "delays", batch=BATCH)
def watch_delays(messages: Sequence[Message]) -> None:
    """Have a notice sent for each flight that left very late; again under an id of the flight's own."""
    for message in messages:
        delay_min = message.body["dep_delay"]
        if delay_min is not None and delay_min > LATE_MIN:
            notify_delay.apply_async((message.id, delay_min), task_id=derived_id("notice", message.id), key=message.key)


@app.task(name="notify_delay", topic=NOTIFICATIONS, group="notifier", bind=True)
def notify_delay(self: BoundTask, flight: str, delay_min: int) -> None:
    """Call the gateway, which often fails, and note the success; the ladder takes care of the rest."""
    gateway.notify(_SEED, flight, self.request.attempt)
    tables.add_notice(tables.thread_connection(app.url), flight, delay_min, self.request.attempt)
