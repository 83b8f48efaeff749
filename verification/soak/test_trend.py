"""The test of trends on made series: flat, noisy, spiky, leaking, in steps, falling."""

import math
import random
from collections.abc import Callable

import pytest

from verification.soak.trend import judge

SPAN_S, STEP_S = 900.0, 1.5
TIMES = [n * STEP_S for n in range(round(SPAN_S / STEP_S))]
LEVEL, TOLERATED = 100.0, 8.0


def noise(chance: random.Random, size: float) -> float:
    return chance.gauss(0, size)


def flat(chance: random.Random, t: float) -> float:
    return LEVEL


def noisy(chance: random.Random, t: float) -> float:
    return LEVEL + noise(chance, 20)


def spiky(chance: random.Random, t: float) -> float:
    """As when something is broken every minute, and more so in the end."""
    return LEVEL + noise(chance, 5) + (1000 if t % 60 < (10 if t < SPAN_S / 2 else 20) else 0)


def saw(chance: random.Random, t: float) -> float:
    """As tables that retention clears in pieces."""
    return LEVEL + (t % 47) * 2 + noise(chance, 3)


def warming(chance: random.Random, t: float) -> float:
    """It comes closer and closer to a level."""
    return LEVEL - 20 * math.exp(-t / 60) + noise(chance, 2)


def falling(chance: random.Random, t: float) -> float:
    return LEVEL - 50 * t / SPAN_S + noise(chance, 3)


def within(chance: random.Random, t: float) -> float:
    """It grows for sure, but by less than is tolerated."""
    return LEVEL + 6 * t / SPAN_S


@pytest.mark.parametrize("series", [flat, noisy, spiky, saw, warming, falling, within])
@pytest.mark.parametrize("seed", range(5))
def test_what_is_flat_is_called_flat(series: Callable[[random.Random, float], float], seed: int) -> None:
    chance = random.Random(seed)
    trend = judge(TIMES, [series(chance, t) for t in TIMES], TOLERATED)
    assert trend.flat, trend


def leaking(chance: random.Random, t: float) -> float:
    return LEVEL + 20 * t / SPAN_S


def leaking_in_noise(chance: random.Random, t: float) -> float:
    return leaking(chance, t) * 1.5 + noise(chance, 20)


def leaking_in_spikes(chance: random.Random, t: float) -> float:
    return leaking(chance, t) + (1000 if t % 60 < 15 else 0)


def leaking_in_steps(chance: random.Random, t: float) -> float:
    """As an allocator takes memory from the system."""
    return LEVEL + 4 * (t // 120) + noise(chance, 0.1)


@pytest.mark.parametrize("series", [leaking, leaking_in_noise, leaking_in_spikes, leaking_in_steps])
@pytest.mark.parametrize("seed", range(5))
def test_what_leaks_is_found(series: Callable[[random.Random, float], float], seed: int) -> None:
    chance = random.Random(seed)
    trend = judge(TIMES, [series(chance, t) for t in TIMES], TOLERATED)
    assert trend.verdict == "grows", trend


def test_the_slope_is_told_per_hour() -> None:
    trend = judge(TIMES, [LEVEL + 20 * t / SPAN_S for t in TIMES], TOLERATED)
    assert trend.per_hour == pytest.approx(80)
    assert trend.first < LEVEL + 5 < LEVEL + 15 < trend.last


@pytest.mark.parametrize("at", [0.4, 0.5, 0.6])
def test_a_step_that_stays_is_found(at: float) -> None:
    chance = random.Random(1)
    trend = judge(TIMES, [LEVEL + noise(chance, 2) + 15 * (t > at * SPAN_S) for t in TIMES], TOLERATED)
    assert not trend.flat, trend


def test_a_large_level_tolerates_its_share() -> None:
    values = [10_000 + 500 * t / SPAN_S for t in TIMES]
    assert not judge(TIMES, values, TOLERATED).flat
    assert judge(TIMES, values, TOLERATED, relative=0.1).flat


def test_a_few_samples_are_no_series() -> None:
    assert judge(TIMES[:11], [LEVEL] * 11, TOLERATED).verdict == "too short"
    assert judge(TIMES[:12], [LEVEL] * 12, TOLERATED).flat


def test_samples_of_one_moment_are_no_obstacle() -> None:
    times = [float(n // 2) for n in range(24)]
    assert judge(times, [LEVEL] * 24, TOLERATED).flat
    assert judge([1.0] * 24, [LEVEL] * 24, TOLERATED).verdict == "too short"
