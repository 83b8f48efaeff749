"""How long Hypothesis goes on: a few seconds, the same each time; or with ``EMS_TEST_LONG`` minutes, never the same."""

import os
import time
from collections.abc import Iterator

from hypothesis import HealthCheck, Phase, settings

LONG_S = float(os.environ.get("EMS_TEST_LONG_S") or 200) if os.environ.get("EMS_TEST_LONG") else 0.0
SETTINGS = settings(
    database=None,
    deadline=None,
    derandomize=not LONG_S,
    max_examples=50 if LONG_S else 20,
    stateful_step_count=60 if LONG_S else 40,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate] if LONG_S else [Phase.generate, Phase.shrink],
    print_blob=True,
)


def rounds(seconds: float) -> Iterator[int]:
    """Count rounds until the time is over; one at least."""
    deadline = time.monotonic() + seconds
    number = 0
    while number == 0 or time.monotonic() < deadline:
        number += 1
        yield number
