"""Checksums of Parquet files, computed by Spark exactly as the store computes them in MySQL.

Both write a row as one text, hash it, and add up 60 bits of each hash: neither sees what the other has read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from emsworker.spark.jobs.archive.manifest import File, read_files
from emsworker.spark.jobs.folder import Folder
from emsworker.store.stream.archive import Sum

TEXTS = {
    "messages": "concat_ws('|', offset, kind, coalesce(upper(replace(uid, '-', '')), '-'), coalesce(hex(key), '-'), "
    "coalesce(hex(tag), '-'), sha2(rawHeaders, 256), sha2(value, 256), size, unix_micros(timestamp), producer)",
    "claims": "concat_ws('|', lo, hi, ackedTo, state, source, isolation, coalesce(client, '-'), claimId, "
    "unix_micros(claimedAt), unix_micros(progressAt))",
    "attempts": "concat_ws('|', offset, attempt, outcome, coalesce(cast(ranMs AS string), '-'), coalesce(client, '-'), "
    "coalesce(sha2(cast(error AS binary), 256), '-'), unix_micros(endedAt))",
}
TIMES = {"messages": "timestamp", "claims": "claimedAt", "attempts": "endedAt"}
"""The column whose day selects a row's folder."""

Key = tuple[str, int]
"""A group (empty for messages) and a partition."""


def sums(spark: Any, folder: Folder, dataset: str, files: Sequence[File]) -> tuple[dict[Key, Sum], dict[str, int]]:
    """Count and hash the rows of a dataset's Parquet files, in one pass.

    Returns:
        a sum for each group and partition, and the number of rows of each file by the last two parts of its path:
        the files of one task have the same name in each day's folder.
    """
    from pyspark.sql import functions as F

    if not any(one.dataset == dataset for one in files):
        return {}, {}
    frame = read_files(spark, folder, dataset, files)
    group = "''" if dataset == "messages" else "group"
    rows = (
        frame.select(
            F.expr(f"{group} AS owner"),
            "partition",
            F.substring_index("_metadata.file_path", "/", -2).alias("file"),
            F.expr(f"cast(conv(substr(sha2({TEXTS[dataset]}, 256), 1, 15), 16, 10) AS decimal(20, 0)) AS hash"),
        )
        .groupBy("owner", "partition", "file")
        .agg(F.count("*").alias("rows"), F.sum("hash").alias("checksum"))
        .collect()
    )
    found: dict[Key, Sum] = {}
    counts: dict[str, int] = {}
    for row in rows:
        key = (row.owner, row.partition)
        found[key] = found.get(key, Sum()) + Sum(row.rows, int(row.checksum))
        counts[row.file] = counts.get(row.file, 0) + row.rows
    return found, counts
