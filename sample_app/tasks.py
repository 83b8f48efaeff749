"""What happens to a flight: four groups read its topic, each at its own pace, and two more live on what they send."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from emsworker import BatchFailed, Filter, Message, Outgoing, Reject
from emsworker.tasks.correlation import caused_by
from emsworker.tasks.task import BoundTask
from sample_app import config, gateway, tables
from sample_app.app import app
from sample_app.data import derived_id
from sample_app.settings import (
    AIRCRAFT_EVENTS,
    BATCH,
    CONFIG,
    FLIGHTS,
    LATE_MIN,
    NOTICE_DELAY_S,
    NOTIFICATIONS,
    ROTATING,
    seed,
)

_SEED = seed()
_TEXTS = ("carrier", "origin", "dest", "time_hour")
_NUMBERS = ("dep_time", "dep_delay", "arr_delay", "air_time", "distance")


def _sort_out(messages: Sequence[Message]) -> tuple[list[Message], dict[str, Exception]]:
    """The flights among these messages; and those that are none, by id, to be rejected: trying again cannot help."""
    reasons = {message.id: reason for message in messages if (reason := _what_is_wrong(message.body))}
    flights = [message for message in messages if message.id not in reasons] if reasons else list(messages)
    return flights, {uid: Reject(reason) for uid, reason in reasons.items()}


def _what_is_wrong(row: Any) -> str | None:
    if not isinstance(row, dict):
        return f"a {type(row).__name__} is no row"
    for name in _TEXTS:
        if row.get(name) is None:
            return f"there is no {name}"
    for name in _NUMBERS:
        value = row.get(name)
        if value is not None and type(value) is not int:
            return f"{name} is {value!r}, and should be a number"
    return None


@app.subscribe(FLIGHTS, "stats", transactional=True, batch=BATCH)
def keep_stats(transaction: Any, messages: Sequence[Message]) -> None:
    """Add a batch of flights to the sums per carrier and per route; they are committed with the batch's being done."""
    flights, malformed = _sort_out(messages)
    carriers: tables.Sums = {}
    routes: tables.Sums = {}
    for message in flights:
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
    if malformed:
        raise BatchFailed(malformed)  # these only: the others' sums are committed


@app.subscribe(FLIGHTS, "aircraft", batch=BATCH)
def tell_aircraft(messages: Sequence[Message]) -> None:
    """Send one event for each flight of a known aircraft, under its tail number and under an id of the flight's own.

    A batch that runs again after a crash sends the same ids, and the stream keeps the first.
    """
    flights, malformed = _sort_out(messages)
    app.send_many(AIRCRAFT_EVENTS, [_aircraft_event(message) for message in flights if message.key is not None])
    if malformed:
        raise BatchFailed(malformed)


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
    uid = derived_id("event", message.id)
    return Outgoing(AIRCRAFT_EVENTS, event, key=message.key, uid=uid, headers=caused_by(message))


@app.subscribe(FLIGHTS, "rotation", filter=Filter(tags=ROTATING), order="key", transactional=True)
def follow_aircraft(transaction: Any, message: Message) -> None:
    """Note each aircraft's flights one after another; one that fails is waited for by those of its aircraft only."""
    gateway.hiccup(_SEED, message.id, message.attempt)
    if message.key is not None:
        tables.add_leg(transaction, str(message.key), message.body["leg"])


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


@app.subscribe(FLIGHTS, "delays", transactional=True, batch=BATCH)
def watch_delays(transaction: Any, messages: Sequence[Message]) -> None:
    """Have a notice sent, a few seconds from now, for each flight that left very late.

    The notices are part of the batch's transaction: each is sent once, whatever dies.
    """
    flights, malformed = _sort_out(messages)
    late = [message for message in flights if (message.body["dep_delay"] or 0) > LATE_MIN]
    if late:
        due_at = app.server_time(NOTICE_DELAY_S)
        for message in late:
            notify_delay.apply_async(
                (message.id, message.body["dep_delay"], due_at.replace(tzinfo=None).isoformat()),
                task_id=derived_id("notice", message.id),
                key=message.key,
                headers=caused_by(message),
                eta=due_at,
                transaction=transaction,
            )
    if malformed:
        raise BatchFailed(malformed)


@app.task(name="notify_delay", topic=NOTIFICATIONS, group="notifier", bind=True)
def notify_delay(self: BoundTask, flight: str, delay_min: int, due_at: str) -> None:
    """Call the gateway, which often fails, and note the success; the ladder repeats it."""
    gateway.notify(_SEED, flight, self.request.attempt)
    tables.add_notice(tables.thread_connection(app.stream.url), flight, delay_min, self.request.attempt, due_at)


@app.subscribe(CONFIG, broadcast=True)
def reconfigure(message: Message) -> None:
    """Go by changed settings from now on, in this process; and note that it does."""
    config.take_over(message.body)
    tables.add_process(tables.thread_connection(app.stream.url), os.getpid(), config.current["title"])
