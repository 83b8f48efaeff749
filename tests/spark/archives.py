"""Archives as tests see them: by PyArrow and PyMySQL, without a line of what is tested."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from emsworker.core.codec import decode_headers
from emsworker.core.model import Topic
from emsworker.publish.outgoing import Outgoing
from emsworker.store.groups import progress
from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.support.streams import Stream, failed, flush_of

Place = tuple[Any, ...]
Message = tuple[Any, ...]


def digest(values: tuple[Any, ...]) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).digest()


def table_messages(stream: Stream, topic_id: int) -> dict[Place, bytes]:
    """Every row of a topic, all its columns as one hash."""
    rows = stream.rows(
        "SELECT `partition`, `offset`, uid, kind, `key`, tag, headers, body, size, born_at, producer_id "
        "FROM ems_message WHERE topic_id = %s AND `offset` > 0",
        topic_id,
    )
    return {row[:2]: digest(row) for row in rows}


def table_claims(stream: Stream) -> dict[Place, bytes]:
    rows = stream.rows(
        "SELECT group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at FROM ems_claim"
    )
    return {row[1:4]: digest(row[1:]) for row in rows}


def table_attempts(stream: Stream) -> dict[Place, bytes]:
    rows = stream.rows(
        "SELECT `partition`, `offset`, ended_at, attempt, outcome, ran_ms, client_id, error FROM ems_attempt"
    )
    return {row[:4]: digest(row) for row in rows}


def _archived_rows(folder: Path, topic: str, dataset: str) -> Iterator[dict[str, Any]]:
    for path in sorted((folder / "manifests" / topic).glob("*.json")):
        for file in json.loads(path.read_text())["files"]:
            if file["dataset"] == dataset:
                table = pq.ParquetFile(folder / file["path"]).read()
                assert table.num_rows == file["rows"]
                yield from table.to_pylist()


def _naive(value: Any) -> Any:
    return value.replace(tzinfo=None)


def archived(folder: Path, topic: str, dataset: str) -> dict[Place, bytes]:
    """The same of what the manifests list; a row that comes twice is an error."""
    found: dict[Place, bytes] = {}
    for row in _archived_rows(folder, topic, dataset):
        if dataset == "messages":
            uid = None if row["uid"] is None else uuid.UUID(row["uid"]).bytes
            labels = (row["key"], row["tag"], row["rawHeaders"], row["value"], row["size"])
            values = (row["partition"], row["offset"], uid, row["kind"], *labels)
            values += (_naive(row["timestamp"]), row["producer"])
            place: Place = values[:2]
        elif dataset == "claims":
            values = (row["partition"], row["lo"], row["claimId"], row["hi"], row["ackedTo"], row["state"])
            values += (
                row["source"],
                row["isolation"],
                row["client"],
                _naive(row["claimedAt"]),
                _naive(row["progressAt"]),
            )
            place = values[:3]
        else:
            values = (row["partition"], row["offset"], _naive(row["endedAt"]), row["attempt"], row["outcome"])
            values += (row["ranMs"], row["client"], row["error"])
            place = values[:4]
        assert place not in found, f"{dataset} {place} is in the archive twice"
        found[place] = digest(values)
    return found


def messages(stream: Stream, topic_id: int) -> dict[int, list[Message]]:
    """By partition, in order: what producers gave."""
    found: dict[int, list[Message]] = {}
    for partition, *rest in stream.rows(
        "SELECT `partition`, `key`, tag, body, headers FROM ems_message WHERE topic_id = %s AND kind = 'message' ORDER BY `partition`, `offset`",
        topic_id,
    ):
        found.setdefault(partition, []).append((*rest[:3], dict(decode_headers(rest[3]))))
    return found


def without_marks(found: dict[int, list[Message]]) -> dict[int, list[Message]]:
    marks = ("ems-restored-from", "ems-restored-id", "ems-restored-born")
    return {
        partition: [(*row[:3], {name: value for name, value in row[3].items() if name not in marks}) for row in rows]
        for partition, rows in found.items()
    }


def sent(stream: Stream, topic_id: int) -> dict[int, list[bytes]]:
    """By partition, in order: hashes of what producers gave, without what the job ``restore`` adds."""
    found: dict[int, list[bytes]] = {}
    marked = without_marks(messages(stream, topic_id))
    for partition, rows in marked.items():
        found[partition] = [digest((*row[:3], sorted(row[3].items()))) for row in rows]
    return found


def fill(stream: Stream, count: int, partitions: int = 2, name: str = "orders") -> Topic:
    """A topic with all that a row can be, and a group that has run it; on several days, two days ago at least."""
    topic = stream.topic(name, partitions=partitions, retention_s=3600, archive_first=True)
    group = stream.group(topic)
    chance = random.Random(7)
    app = stream.app()
    for start in range(0, count, 5000):
        app.send_many(
            name,
            [
                Outgoing(
                    name,
                    chance.randbytes(chance.randrange(300)) if number % 10 == 0 else {"n": number},
                    key=chance.choice([None, "k1", "k2", b"\xff\x00", "ключ"]),
                    tag=chance.choice([None, "red", b"\x80"]),
                    headers={"источник": f"n{number}"} if number % 3 == 0 else None,
                )
                for number in range(start, min(start + 5000, count))
            ],
        )
    stream.rows(
        "UPDATE ems_message SET kind = 'tombstone', uid = NULL, `key` = NULL, tag = NULL, headers = '', body = '', size = 0, producer_id = '' WHERE MOD(`offset`, 97) = 0"
    )
    stream.rows("UPDATE ems_message SET kind = 'cancelled' WHERE MOD(`offset`, 101) = 5 AND kind = 'message'")
    stream.rows(
        "UPDATE ems_message SET born_at = DATE(born_at) - INTERVAL 52 HOUR + INTERVAL MOD(`offset`, 1500) * 100 SECOND "
        "+ INTERVAL MICROSECOND(born_at) MICROSECOND"
    )
    me = stream.client(lease_s=3600)
    for partition in range(partitions):
        end = stream.value(
            "SELECT MAX(`offset`) FROM ems_message WHERE topic_id = %s AND `partition` = %s", topic.id, partition
        )
        lo = 1
        while lo <= end:
            claim = stream.take(topic, group, me, 500, partition)
            ran = [message.offset for message in claim.messages]
            failures = [failed(ran[0], dead="used up" if lo % 2 else None), failed(ran[-1])]
            progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=failures))
            lo = claim.hi + 1
    # What failed is run once more by hand, so that no retry holds the log start offset.
    stream.rows("DELETE FROM ems_retry")
    return topic


def job(profiles: Path, *arguments: str, log: Path) -> "subprocess.Popen[bytes]":
    """``ems pipeline ...`` with Spark in a process group of its own; its progress goes to a file."""
    environment = {**os.environ, **spark_environment(), "EMS_PROFILES": str(profiles)}
    with log.open("wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "emsworker.spark.jobs", *arguments, *CONF, "--profile", "test"],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


def killed(process: "subprocess.Popen[bytes]", log: Path, line: str, delay_s: float, patience_s: float = 240.0) -> bool:
    """Kill -9 of a job, Java included, so long after it has told something; whether it was still running."""
    deadline = time.monotonic() + patience_s
    try:
        while process.poll() is None and line not in log.read_text(errors="replace"):
            assert time.monotonic() < deadline, f"{line!r} never came: {log.read_text()[-3000:]}"
            time.sleep(0.005)
        time.sleep(delay_s)  # the seeded moment itself
        return process.poll() is None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
