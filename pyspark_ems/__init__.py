"""Registration of ``format("ems")``: Spark imports every package whose name begins with ``pyspark_``."""

from emsworker.spark.source import EmsSource as DefaultSource

__all__ = ["DefaultSource"]
