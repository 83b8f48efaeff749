"""What became of a message: each state that there is, from rows made for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from emsworker.pipeline.fates import ATTEMPT_COLUMNS, CLAIM_COLUMNS, fates, stories

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
_PLACE = "`group` string, topic string, partition int, offset bigint"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def claim(
    lo: int, hi: int, done_to: int, state: str, client: str | None, began: float, ended: float
) -> tuple[Any, ...]:
    return ("g", "t", 0, lo, hi, done_to, state, "stream", client, at(began), at(ended))


def attempt(offset: int, number: int, outcome: str, ended: float, client: str = "r") -> tuple[Any, ...]:
    return ("g", "t", 0, offset, number, outcome, 7, client, at(ended))


def test_every_state_is_told_from_the_log(spark_session: Any) -> None:
    spark = spark_session
    claims = [
        claim(1, 4, 4, "done", "a", 10, 14),
        claim(5, 6, 5, "start", "b", 20, 21),  # 5 is done, 6 runs
        claim(7, 7, 6, "waiting", None, 30, 30),  # its owner died, nobody has it now
        claim(3, 3, 3, "done", "c", 40, 41),  # replayed
        ("g", "t", 0, 2, 9, 1, "start", "retry", "x", at(50), at(50)),  # a claim of retries covers nothing by itself
        claim(9, 8, 8, "done", "d", 60, 60),  # given back whole
    ]
    attempts = [
        attempt(1, 1, "failed", 11),
        attempt(2, 1, "failed", 12),
        attempt(2, 2, "done", 25, "s"),
        attempt(4, 1, "failed", 13),
        attempt(8, 1, "failed", 13),
    ]
    retries = [("g", "t", 0, 1)]
    dead = [("g", "t", 0, 4, at(14))]
    told = stories(
        spark.createDataFrame(claims, ", ".join(CLAIM_COLUMNS)),
        spark.createDataFrame(attempts, ", ".join(ATTEMPT_COLUMNS)),
        spark.createDataFrame(retries, _PLACE),
        spark.createDataFrame(dead, f"{_PLACE}, deadAt timestamp"),
    )
    messages = spark.createDataFrame(
        [("t", 0, offset) for offset in range(1, 12)], "topic string, partition int, offset bigint"
    )
    cursors = spark.createDataFrame([("g", "t", 0, 11)], "`group` string, topic string, partition int, cursor bigint")
    rows = {row.offset: row for row in fates(messages, cursors, told).collect()}
    assert {offset: row.state for offset, row in rows.items()} == {
        1: "retry",
        2: "done",
        3: "done",
        4: "dead",
        5: "done",
        6: "claimed",
        7: "waiting",
        8: "dropped",  # it failed, waits for nothing, and its dead letter is gone
        9: "skipped",
        10: "skipped",
        11: "unclaimed",
    }
    ended = {2: 25, 3: 41, 4: 14, 5: 21, 8: 13}
    for offset, row in rows.items():
        found = row.endedAt.astimezone(UTC) if row.endedAt else None
        assert found == (at(ended[offset]) if offset in ended else None), offset
    assert rows[3].claimedAt.astimezone(UTC) == at(10), "when it was first taken"
    assert (rows[3].client, rows[2].client, rows[1].client) == ("c", "s", "r"), "who had it last"
    assert (rows[2].tries, sorted(rows[2].ranMs), rows[3].tries) == (2, [7, 7], None)
    assert (rows[1].shareMs, rows[3].shareMs, rows[5].shareMs) == (1000.0, 1000.0, 1000.0)
    assert rows[7].claimedAt is None
