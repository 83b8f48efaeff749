"""Names that the app and the harness share; importing the app itself would need its environment."""

TOPIC = "acts"
GROUPS = ("plain", "keyed", "serial", "cash")
KEYS = ("a", "b", "c", "d", "e", "f", None)
PARTITIONS = 2

SWALLOW, SESSION, SLOW, IDLE = "swallow", "session", "slow", "idle"
OPERATED, REBORN, VERSIONED = "operated", "reborn", "versioned"
SLOW_TIMEOUT_S = 1.5
FORKED, MANY = "forked", 300  # topics that nobody reads
