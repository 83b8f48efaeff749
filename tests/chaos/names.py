"""Names that the app and the harness share; importing the app itself would need its environment."""

TOPIC = "acts"
GROUPS = ("plain", "keyed", "serial", "cash")
KEYS = ("a", "b", "c", "d", "e", "f", None)
PARTITIONS = 2
