"""A topic that several groups read, each with a subscription that does nothing."""

import os
from typing import Any

from emsworker import Ems

app = Ems("grouped")


def _nothing(body: Any) -> None:
    pass


for _number in range(int(os.environ.get("BENCH_GROUPS", "1"))):
    app.subscribe("events", group=f"g{_number}")(_nothing)
