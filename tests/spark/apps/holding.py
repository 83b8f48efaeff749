"""A driver that is to be killed: copies topic ``in`` to Parquet in small micro-batches, and holds what it has not read.

Usage: holding.py FOLDER HOLD_FOR (forever | end)
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS


def main(folder: Path, hold_for: str, until: str) -> None:
    builder = SparkSession.builder.master("local[1]").appName("holding")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    reader = spark.readStream.format("ems").options(profile="test", subscribe="in", startingOffsets="earliest")
    reader = reader.options(
        holdName="nightly", holdFor=hold_for, maxOffsetsPerTrigger="20" if until == "forever" else "500"
    )
    writer = reader.load().writeStream.format("parquet").option("path", str(folder / "out"))
    trigger = {"availableNow": True} if until == "end" else {"processingTime": "0 seconds"}
    writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
