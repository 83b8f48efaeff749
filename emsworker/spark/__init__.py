"""The stream in Spark: ``format("ems")`` for PySpark 4.2 or later, with the names of Spark's Kafka source.

Needs ``pip install 'emsworker[spark]'`` and Java 17. Spark is not imported until it is used.
"""

from __future__ import annotations

from typing import Any


def read_jdbc(spark: Any, **options: Any) -> Any:
    """Call :func:`emsworker.spark.jdbc.read_jdbc`."""
    from emsworker.spark.jdbc import read_jdbc as read

    return read(spark, **options)


__all__ = ["read_jdbc"]
