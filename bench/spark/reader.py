"""``python -m bench.spark.reader FOLDER ROWS``: reads the topic ``bench``, as a stream and at rest, when it is told to.

A process of its own, so that it can be given a low priority and its processor time can be counted. It is told ``on`` or
``off`` on its standard input; to ``off`` it answers, when all has come to rest, how many rows it has read.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path
from typing import Any

from bench.spark.motion import stream_of
from bench.spark.session import session

_A_SECOND, _AT_ONCE = 20_000, 25_000


class Reader:
    """A streaming query, a second after the other, and beside it one read at rest after the other."""

    def __init__(self, spark: Any, folder: Path, rows: int) -> None:
        self._spark, self._folder, self._rows = spark, folder, rows
        self._stop = threading.Event()
        self._at_rest = 0
        self._thread: threading.Thread | None = None
        self._query: Any = None

    def on(self) -> None:
        """Begin; the query goes on where it ended."""
        frame = stream_of(self._spark, "bench").option("maxOffsetsPerTrigger", str(_A_SECOND)).load()
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(self._folder / "along"))
        self._query = writer.trigger(processingTime="1 second").start()
        self._stop.clear()
        self._thread = threading.Thread(target=self._read_at_rest)
        self._thread.start()

    def off(self) -> tuple[int, int]:
        """Stop; returns the rows of the stream and those read at rest since the last time."""
        assert self._thread is not None and self._query is not None
        self._stop.set()
        self._thread.join()
        if (error := self._query.exception()) is not None:
            raise error
        in_stream = sum(progress["numInputRows"] for progress in self._query.recentProgress)
        self._query.stop()
        at_rest, self._at_rest = self._at_rest, 0
        return in_stream, at_rest

    def _read_at_rest(self) -> None:
        chance = random.Random(7)
        while not self._stop.is_set():
            lo = chance.randrange(1, max(2, self._rows - _AT_ONCE))
            bounds = {"startingOffsets": lo, "endingOffsets": min(lo + _AT_ONCE, self._rows)}
            options = {name: f'{{"bench":{{"0":{offset}}}}}' for name, offset in bounds.items()}
            frame = self._spark.read.format("ems").option("profile", "bench").option("subscribe", "bench")
            frame = frame.options(**options).load()
            self._at_rest += frame.selectExpr("count(value) AS n", "sum(length(value))").collect()[0].n


def main(folder: Path, rows: int) -> None:
    """Obey standard input until it ends."""
    spark = session(folder)
    reader = Reader(spark, folder, rows)
    reader.on()  # once, so that everything has been started when it counts
    reader.off()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "on":
            reader.on()
        else:
            print(*reader.off(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
