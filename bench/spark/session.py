"""The session that is measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from bench.spark.reading import JAR


def session(folder: Path) -> Any:
    """Two cores of this machine."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(Path.cwd())}
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.python.authenticate.socketTimeout", "120s")  # of a machine that is not quiet
    builder = builder.config("spark.driver.memory", "2g").config("spark.local.dir", str(folder))
    if JAR.exists():
        builder = builder.config("spark.jars", str(JAR))
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark
