"""What is sent: the same while the capacity is measured and afterwards."""

import random
from typing import Any

# Enough that handlers, of which so many run at once, are the limit and not the processors: what shares the machine, the
# checker too, matters less.
WORK_S = (0, 0.004, 0.01, 0.02)


def body(chance: random.Random, size_bytes: int) -> dict[str, Any]:
    """A message for the handlers of the chaos app: for how long they work, and something to carry."""
    return {"work_s": chance.choice(WORK_S), "fill": "x" * size_bytes}
