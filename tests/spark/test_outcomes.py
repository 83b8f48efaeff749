"""What became of a message: each state that there is, from rows made for it."""

from datetime import UTC, datetime, timedelta
from typing import Any

from emsworker.core.selection.filters import Filter
from emsworker.spark.columns import ddl
from emsworker.spark.jobs.reports.outcomes import ATTEMPT_COLUMNS, CLAIM_COLUMNS, outcomes, stories

T0 = datetime(2026, 11, 21, 8, tzinfo=UTC)
_PLACE = "`group` string, topic string, partition int, offset bigint"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def claim(
    lo: int, hi: int, acked_to: int, state: str, client: str | None, began: float, ended: float
) -> tuple[Any, ...]:
    return ("g", "t", 0, lo, hi, acked_to, state, "stream", client, lo, at(began), at(ended))


def attempt(offset: int, number: int, outcome: str, ended: float, client: str = "r") -> tuple[Any, ...]:
    return ("g", "t", 0, offset, number, outcome, 7, client, at(ended))


def test_every_state_is_told_from_the_log(spark_session: Any) -> None:
    spark = spark_session
    claims = [
        claim(1, 4, 4, "done", "a", 10, 14),
        claim(5, 6, 5, "start", "b", 20, 21),  # 5 is done, 6 runs
        claim(7, 7, 6, "waiting", None, 30, 30),  # its owner died, nobody has it now
        claim(3, 3, 3, "done", "c", 40, 41),  # replayed
        (
            "g",
            "t",
            0,
            2,
            9,
            1,
            "start",
            "retry",
            "x",
            99,
            at(50),
            at(50),
        ),  # a claim of retries covers nothing by itself
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
        spark.createDataFrame(claims, ddl("claims", CLAIM_COLUMNS)),
        spark.createDataFrame(attempts, ddl("attempts", ATTEMPT_COLUMNS)),
        spark.createDataFrame(retries, _PLACE),
        spark.createDataFrame(dead, f"{_PLACE}, deadAt timestamp"),
    )
    messages = spark.createDataFrame(
        [("t", 0, offset) for offset in range(1, 12)], "topic string, partition int, offset bigint"
    )
    cursors = spark.createDataFrame([("g", "t", 0, 11)], "`group` string, topic string, partition int, cursor bigint")
    rows = {row.offset: row for row in outcomes(messages, cursors, told).collect()}
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


def test_what_a_filter_leaves_out_is_none_of_the_groups_messages(spark_session: Any) -> None:
    spark = spark_session
    claims = [claim(1, 8, 8, "done", "a", 10, 18), claim(9, 10, 8, "start", "b", 20, 20)]
    told = stories(
        spark.createDataFrame(
            [*claims, ("all", *claims[0][1:]), ("other", *claims[0][1:])], ddl("claims", CLAIM_COLUMNS)
        ),
        spark.createDataFrame([attempt(6, 1, "failed", 12)], ddl("attempts", ATTEMPT_COLUMNS)),
        spark.createDataFrame([("g", "t", 0, 7)], _PLACE),
        spark.createDataFrame([("g", "t", 0, 8, at(14))], f"{_PLACE}, deadAt timestamp"),
    )
    headers = {
        1: (b"a", b'{"region": "eu", "x": "1"}'),
        2: (b"b", b'{"region": "eu"}'),
        3: (b"A", b'{"region": "eu"}'),  # byte by byte
        4: (None, b'{"region": "eu"}'),
        5: (b"a", b'{"region": "us"}'),
        6: (b"c", b'{"region": "eu"}'),  # an earlier filter let it fail,
        7: (b"a", b""),  # wait for a retry,
        8: (b"a", b"{broken"),  # and die
        9: (b"a", None),
        10: (b"a", b'{"region": "eu"}'),
        11: (b"b", b'{"region": "eu"}'),
        12: (b"b", b'{"region": "EU"}'),
    }
    messages = spark.createDataFrame(
        [("t", 0, offset, tag, raw) for offset, (tag, raw) in headers.items()],
        "topic string, partition int, offset bigint, tag binary, rawHeaders binary",
    )
    cursors = spark.createDataFrame(
        [(group, "t", 0, 11) for group in ("g", "all", "other")],
        "`group` string, topic string, partition int, cursor bigint",
    )
    filters = {("t", "g"): Filter(tags=["a", "b"], headers={"region": "eu"}), ("t", "other"): Filter(tags=["c"])}
    rows = {(row.group, row.offset): row for row in outcomes(messages, cursors, told, filters).collect()}
    assert {offset: row.state for (group, offset), row in rows.items() if group == "g"} == {
        1: "done",
        2: "done",
        6: "dropped",
        7: "retry",
        8: "dead",
        10: "claimed",
        11: "unclaimed",
    }
    assert [offset for group, offset in rows if group == "other"] == [6]
    assert {offset for group, offset in rows if group == "all"} == set(headers)
    # 8 s were spent on five messages, on one, and on eight.
    assert (rows["g", 1].shareMs, rows["other", 6].shareMs, rows["all", 1].shareMs) == (1600.0, 8000.0, 1000.0)
    assert rows["g", 11].shareMs is None
