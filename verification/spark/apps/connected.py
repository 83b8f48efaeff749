"""A client of Spark Connect: reads, writes and streams with ``format("ems")``; prints what it saw as JSON.

Usage: connected.py ADDRESS FOLDER
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def patiently(action: Callable[[], None]) -> None:
    """Try again as long as Spark gives up a Python that takes 10 s to start; on a busy machine it does."""
    while True:
        try:
            return action()
        except Exception as error:
            if "connect back" not in str(error):
                raise


def main(address: str, folder: Path) -> dict[str, Any]:
    """Write the same twice, and copy it by a stream into the sink and by ``foreachBatch``: each row stays once."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(address).getOrCreate()

    def read(topic: str) -> list[int]:
        frame = spark.read.format("ems").options(profile="test", subscribe=topic).load()
        return sorted(int(row.n) for row in frame.selectExpr("string(value) AS n").collect())

    def write() -> None:
        numbers = spark.range(200).selectExpr("string(id) AS value", "concat('k', id % 7) AS key")
        numbers.write.format("ems").options(profile="test", topic="in", jobId="numbers").mode("append").save()

    def source(**options: str) -> Any:
        reader = spark.readStream.format("ems").options(profile="test", subscribe="in", startingOffsets="earliest")
        return reader.options(**options).load().select("key", "value").writeStream

    def stream(writer: Any, name: str) -> None:
        query = writer.option("checkpointLocation", str(folder / name)).trigger(availableNow=True).start()
        query.awaitTermination()
        if (error := query.exception()) is not None:
            raise error

    def by_batch(frame: Any, batch: int) -> None:
        for _ in range(2):  # as after a driver that died between its batch and the commit
            writer = frame.write.format("ems").options(profile="test", topic="each", jobId=f"each-{batch}")
            writer.mode("append").save()

    for _ in range(2):
        patiently(write)
    patiently(lambda: stream(source(holdName="connected").format("ems").options(profile="test", topic="out"), "sink"))
    patiently(lambda: stream(source(maxOffsetsPerTrigger="100").foreachBatch(by_batch), "by-batch"))
    return {"client": type(spark).__module__, **{topic: read(topic) for topic in ("in", "out", "each")}}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
