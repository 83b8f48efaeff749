"""A driver that is to be killed: copies topic ``in`` to Parquet and to topic ``out``, in small micro-batches.

Usage: copying.py MASTER FOLDER (forever | end)
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from tests.spark.conftest import SETTINGS


def main(master: str, folder: Path, until: str) -> None:
    builder = SparkSession.builder.master(master).appName("copying")
    for name, value in {**SETTINGS, "spark.executor.memory": "512m", "spark.task.maxFailures": "8"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    trigger = {"availableNow": True} if until == "end" else {"processingTime": "0 seconds"}

    def start(name: str, form: str, **options: str) -> StreamingQuery:
        reader = spark.readStream.format("ems").option("profile", "test").option("subscribe", "in")
        most = "1000000" if until == "end" else "50"
        frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", most).load()
        writer = frame.select("key", "value").writeStream.format(form).options(**options)
        return writer.option("checkpointLocation", str(folder / name)).trigger(**trigger).start()

    queries = [
        start("to-parquet", "parquet", path=str(folder / "out")),
        start("to-stream", "ems", profile="test", topic="out"),
    ]
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
