"""What the sample calls things, and the few numbers that steer it."""

from __future__ import annotations

import os

FLIGHTS = "flights"
AIRCRAFT_EVENTS = "aircraft-events"
NOTIFICATIONS = "notifications"
REPORTS = "reports"
CONFIG = "config"  # a broadcast: every worker process hears it
# Keys spread over these, so that several workers find work at the same time.
PARTITIONS = {FLIGHTS: 8, AIRCRAFT_EVENTS: 8, NOTIFICATIONS: 2, REPORTS: 1}
# Which topics are created on another server than the main one, if there are several.
PLACES = {"east": AIRCRAFT_EVENTS, "west": NOTIFICATIONS}
KEEP_S = 30 * 86400  # replays and the reports read the topics after everything was run
# These groups read every flight.
READERS = ("stats", "aircraft", "delays")
# These airlines want to know the way of each of their aircraft, flight by flight in the order of the file.
ROTATING = ("FL", "VX")

BATCH = 500
LATE_MIN = 180  # departures more than three hours late are worth a notice
NOTICE_DELAY_S = 3  # so long the airline has to correct itself before anybody is told
NIGHTLY, NIGHTLY_NAME, NIGHT_SHIFT = "0 0 * * *", "nightly-summary", "night-shift"
REHEARSAL, REFUSAL = "rehearsal", "a rehearsal is not signed off"
TITLE, NEW_TITLE = "Flights from New York", "Departures of EWR, JFK and LGA"
DEFAULT_SEED = 2013
SEED_VARIABLE = "SAMPLE_SEED"


def seed() -> int:
    """The seed of the flaky gateway, from ``SAMPLE_SEED``."""
    return int(os.environ.get(SEED_VARIABLE, DEFAULT_SEED))
