"""Reading of a topic as Arrow, and of the same rows by plain PyMySQL."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from bench.spark import raw
from bench.stage import NotRight, Stage
from emsworker import Ems
from emsworker.admin import Admin

COLUMNS = ["key", "value", "offset", "timestamp"]  # those that raw PyMySQL reads
_SIZE, _TIMES_DRAINED = 200, 5


def fill(stage: Stage, rows: int, size: int) -> None:
    """Make the topic ``bench``, whose id is 1, with so many messages."""
    app = Ems("bench", url=stage.url)
    Admin(app).create_topic("bench")
    app.close()
    raw.fill(stage.url, 1, rows, size)
    with stage.connect() as connection, connection.cursor() as cursor:  # as the leading beat notes it
        cursor.execute("UPDATE ems_partition SET high_watermark = next_offset")
    os.environ["EMS_URL"] = stage.url


def arrow(stage: Stage) -> dict[str, float]:
    """Read key, body, offset and time by ``read_arrow``, over one connection."""
    from emsworker.arrow import read_arrow

    def read(rows: int) -> int:
        return sum(batch.num_rows for batch in read_arrow(subscribe="bench", columns=COLUMNS))

    return _rate(stage, read)


def driver(stage: Stage) -> dict[str, float]:
    """Read the same by a ``SELECT`` of 10,000 rows a query, over one connection."""
    return _rate(stage, lambda rows: raw.read(raw.Part(stage.url, 1, rows + 1)))


def _rate(stage: Stage, read: Callable[[int], int]) -> dict[str, float]:
    rows = _TIMES_DRAINED * stage.size.drained
    fill(stage, rows, _SIZE)
    read(rows)  # what is read first finds pages that the filling has left to be written
    began = time.perf_counter()
    found = read(rows)
    elapsed = time.perf_counter() - began
    if found != rows:
        raise NotRight(f"{found} rows were read of {rows}")
    return {"messages/s": rows / elapsed}
