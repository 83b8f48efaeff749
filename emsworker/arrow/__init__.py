"""Reads of the stream as Arrow: for PyArrow, pandas, Polars and DuckDB, and below ``format("ems")`` of Spark.

Needs ``pip install 'emsworker[arrow]'``; PyArrow is not imported until it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.arrow.frames import explain_read, read_arrow, read_pandas, scan_polars
    from emsworker.arrow.manifest import ArchiveDamaged, archive_files
    from emsworker.arrow.planning import DataLoss, OutOfRange

__all__ = [
    "ArchiveDamaged",
    "DataLoss",
    "OutOfRange",
    "archive_files",
    "explain_read",
    "read_arrow",
    "read_pandas",
    "scan_polars",
]

__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.arrow.frames": "explain_read read_arrow read_pandas scan_polars",
        "emsworker.arrow.manifest": "ArchiveDamaged archive_files",
        "emsworker.arrow.planning": "DataLoss OutOfRange",
    },
)
