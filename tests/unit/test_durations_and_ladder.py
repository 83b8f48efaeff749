"""Durations, the retry ladder, and the size of claims."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker.consume.claimer import BatchSizer
from emsworker.core.durations import LONGEST_S, format_duration, parse_duration
from emsworker.core.errors import ContentRefused, DecodeError, Ignore, Reject, Retry, TransactionEnded
from emsworker.core.ladder import DEFAULT_LADDER, Dead, Done, Ladder, RetryIn


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("10s", 10), ("1.5m", 90), ("2h", 7200), ("7d", 604800), (" 3 ", 3), (0.25, 0.25), (1e-5, 1e-5)],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "1 s", "10sec", "1e3", "inf", "nan", "1h30m", math.inf, math.nan, -1.0]
)
def test_what_is_no_duration_is_refused_by_name(text: str | float) -> None:
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


def test_a_duration_stays_within_the_range_of_datetime() -> None:
    assert parse_duration("36600d") == LONGEST_S
    with pytest.raises(ValueError, match="100 years"):
        parse_duration("36601d")


@given(st.floats(0, LONGEST_S, allow_subnormal=False))
def test_a_written_duration_reads_back_exactly(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(("seconds", "text"), [(0.5, "500ms"), (10, "10s"), (90, "90s"), (120, "2m"), (86400, "1d")])
def test_durations_are_written_shortly(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_the_default_ladder_has_16_rungs_and_then_death() -> None:
    ladder = Ladder.parse(DEFAULT_LADDER, jitter=0)
    assert len(ladder.delays_s) == 16
    decisions = [ladder.next(attempt, ValueError("no")) for attempt in range(1, 17)]
    assert decisions[:3] == [RetryIn(10), RetryIn(30), RetryIn(60)]
    assert decisions[14] == RetryIn(3600)
    assert decisions[15] == Dead("used up its 16 attempts")


def test_the_last_rung_repeats() -> None:
    ladder = Ladder.parse("1s 2s", max_attempts=9, jitter=0)
    assert [ladder.next(attempt, ValueError()) for attempt in (2, 3, 8)] == [RetryIn(2.0)] * 3


def test_jitter_only_lengthens() -> None:
    ladder = Ladder.parse("10s", jitter=0.5)
    assert ladder.next(1, ValueError(), rng=lambda: 0.0) == RetryIn(10)
    assert ladder.next(1, ValueError(), rng=lambda: 1.0) == RetryIn(15)


def test_the_error_decides() -> None:
    ladder = Ladder.parse("10s", max_attempts=2, jitter=0)
    assert ladder.next(1, Ignore()) == Done()
    assert ladder.next(9, Ignore()) == Done()
    for hopeless in (Reject("bad"), ContentRefused("bad"), DecodeError("bad"), TransactionEnded("bad")):
        assert ladder.next(1, hopeless) == Dead("bad")
    assert ladder.next(1, Retry("later", countdown=0)) == RetryIn(0.0)
    assert ladder.next(1, Retry("later")) == RetryIn(10)
    assert ladder.next(2, Retry("later", countdown=5)) == Dead("used up its 2 attempts")


@pytest.mark.parametrize("countdown", [-1, math.inf, math.nan, 1e12])
def test_an_impossible_countdown_is_an_error_of_the_handler(countdown: float) -> None:
    with pytest.raises(ValueError, match="out of range"):
        Retry(countdown=countdown)


@pytest.mark.parametrize(
    ("text", "attempts", "jitter", "message"),
    [("", 1, 0, "at least one rung"), ("1x", 1, 0, "'1x'"), ("1s", 0, 0, "max_attempts"), ("1s", 1, 2, "jitter")],
)
def test_a_wrong_ladder_is_refused(text: str, attempts: int, jitter: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Ladder.parse(text, attempts, jitter)


@given(st.lists(st.floats(0, LONGEST_S, allow_subnormal=False), min_size=1, max_size=20))
def test_a_written_ladder_reads_back(delays: list[float]) -> None:
    ladder = Ladder(tuple(delays))
    assert Ladder.parse(str(ladder)) == ladder


def test_slow_messages_are_claimed_one_by_one_and_fast_ones_by_hundreds() -> None:
    fast = BatchSizer(0.5, 500)
    sizes = []
    for _ in range(4):
        fast.record(fast.size, fast.size * 0.0001)
        sizes.append(fast.size)
    assert sizes == [8, 64, 500, 500]
    fast.record(500, 500 * 0.4)
    assert fast.size == 1
    slow = BatchSizer(0.5, 500)
    slow.record(1, 3.0)
    assert slow.size == 1


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1e6)), max_size=30), st.integers(1, 1000))
def test_a_claim_never_leaves_its_bounds(history: list[tuple[int, float]], largest: int) -> None:
    sizer = BatchSizer(0.5, largest)
    for messages, seconds in history:
        sizer.record(messages, seconds)
        assert 1 <= sizer.size <= largest


def test_a_decision_reads_well_in_a_log() -> None:
    assert [str(RetryIn(0.21286)), str(RetryIn(3600.0)), str(Dead("bad")), str(Done())] == [
        "again in 0.2 s",
        "again in 3600.0 s",
        "dead: bad",
        "done",
    ]
