"""Names that the app and the harness share; importing the app itself would need its environment."""

TOPIC = "acts"
GROUPS = ("plain", "keyed", "serial", "cash")
KEYS = ("a", "b", "c", "d", "e", "f", None)
PARTITIONS = 2

SWALLOW, SESSION, SLOW, IDLE = "swallow", "session", "slow", "idle"
OPERATED, REBORN, VERSIONED = "operated", "reborn", "versioned"
SLOW_TIMEOUT_S = 1.5
FORKED, MANY = "forked", 300  # topics that nobody reads

BOOKED = "booked"  # of the calls that have an effect
CALLS, SHARES, PLACES = "calls", "shares", "places"
NEEDS = {"p-any": frozenset[str](), "p-gpu": frozenset({"gpu"}), "p-both": frozenset({"gpu", "eu"})}
"""The tags that each group of PLACES requires."""
