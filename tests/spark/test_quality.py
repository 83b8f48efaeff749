"""The job ``quality``: it finds each thing that was planted, and nothing in a stream that is in order."""

import json
from pathlib import Path
from typing import Any

from emsworker.spark.jobs import load
from emsworker.spark.jobs.archive.archive import ArchiveOptions
from emsworker.spark.jobs.job import JobResult
from emsworker.spark.jobs.reports.quality import QualityOptions
from tests.spark.archives import fill
from tests.support import rows
from tests.support.streams import Stream


def quality(spark: Any, **options: Any) -> JobResult:
    return load("quality").run(spark, QualityOptions(profile="test", **options))


def findings(result: JobResult) -> list[tuple[Any, ...]]:
    """check, severity, topic, group, partition, count."""
    assert result.report is not None
    return [row[:6] for row in result.report.tables[0].rows]


def test_each_fault_in_the_stream_is_found_and_named(stream: Stream, spark: Any) -> None:
    topic = fill(stream, 200, partitions=1)
    group = stream.group(topic)
    stream.rows("DELETE FROM ems_attempt")
    clean = quality(spark)
    assert (findings(clean), clean.failure, clean.summary["offsets"]) == ([], None, 200)

    rows.lose(stream.rows, 50, 51, 52)
    stream.rows("UPDATE ems_message SET born_at = NOW(6) + INTERVAL 1 HOUR WHERE `offset` IN (7, 8)")
    stream.rows("UPDATE ems_claim SET hi = 900 WHERE lo = (SELECT * FROM (SELECT MAX(lo) FROM ems_claim) m)")
    for offset, outcome in ((60, "done"), (60, "done"), (61, "failed")):
        stream.rows(
            "INSERT INTO ems_attempt (group_id, `partition`, `offset`, ended_at, attempt, outcome) SELECT %s, 0, %s, NOW(6) - INTERVAL COUNT(*) SECOND, 1, %s FROM ems_attempt",
            group.id,
            offset,
            outcome,
        )
    rows.add_retry(stream.rows, group.id, 51)
    rows.add_claim(stream.rows, group.id, 9, 9, client_id="gone", idle_s=86400)
    result = quality(spark)
    assert findings(result) == [
        ("future", "error", "orders", None, 0, 2),
        ("gaps", "error", "orders", None, 0, 3),
        ("orphans", "error", "orders", "g", 0, 1),
        ("orphans", "error", "orders", "g", 0, 1),
        ("orphans", "error", "orders", "g", 0, 1),
        ("duplicates", "note", "orders", "g", 0, 1),
    ]
    assert result.report is not None
    details = " ".join(row[6] for row in result.report.tables[0].rows)
    for part in (
        "offsets 50 to 52 have no row",
        "retries whose message is gone",
        "running claims whose client is gone",
    ):
        assert part in details
    assert result.failure == "5 errors were found"


def test_an_archive_is_compared_with_its_manifests(stream: Stream, spark: Any, tmp_path: Path) -> None:
    fill(stream, 300, partitions=1)
    run = load("archive").run
    run(spark, ArchiveOptions(profile="test", folder=str(tmp_path), segment=100))
    assert findings(quality(spark, folder=str(tmp_path))) == []

    names = sorted(
        (tmp_path / "manifests" / "orders").glob("*.json"), key=lambda path: json.loads(path.read_text())["archived_at"]
    )
    first, second, third = (json.loads(path.read_text()) for path in names)
    files = [one for one in first["files"] if one["dataset"] == "messages"]
    (tmp_path / files[0]["path"]).unlink()
    second["parts"][0]["checksum"] += 1
    names[1].write_text(json.dumps(second))
    third["parts"][0]["offsets"]["start"] += 5
    third["parts"][0]["rows"] += 1
    names[2].write_text(json.dumps(third))
    (tmp_path / "data" / "orders" / "stray").mkdir()
    (tmp_path / "data" / "orders" / "stray" / "part.parquet").write_text("x")
    result = quality(spark, folder=str(tmp_path))
    assert result.report is not None
    told = [(row[1], row[5], row[6]) for row in result.report.tables[0].rows if row[0] == "archive"]
    text = " | ".join(detail for _, _, detail in told)
    for part in (
        f"{files[0]['path']} is missing",
        second["segment"],
        third["segment"],
        "stray has files but no manifest",
        "offsets 201 to 205 are in no segment",
    ):
        assert part in text
    assert sorted(severity for severity, _, _ in told) == ["error"] * 3 + ["note"] * 2
    assert result.failure == "3 errors were found"
