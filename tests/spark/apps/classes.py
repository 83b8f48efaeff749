"""Lays Spark's classes out in a file as they are in memory; a Java that is given the file starts in half the time.

Usage: classes.py FILE. Java calls it dynamic class data sharing; it ignores a file that another Java or Spark has made.
"""

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession


def main(file: str) -> None:
    """Do a little of everything with Spark, and let its Java write the file when it ends."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    with tempfile.TemporaryDirectory() as folder:
        options = f"-XX:ArchiveClassesAtExit={file} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        builder = SparkSession.builder.master("local[1]").config("spark.driver.extraJavaOptions", options)
        spark = builder.config("spark.ui.enabled", "false").config("spark.local.dir", folder).getOrCreate()
        where = str(Path(folder) / "rows")
        spark.range(100).selectExpr("id % 3 AS key", "id").write.parquet(where)
        spark.read.parquet(where).groupBy("key").sum("id").collect()
        stream = spark.readStream.schema("key long, id long").parquet(where).writeStream.format("noop")
        query = stream.option("checkpointLocation", str(Path(folder) / "at")).trigger(availableNow=True).start()
        query.awaitTermination()
        gateway = spark.sparkContext._gateway
        spark.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
