"""How often a poller looks."""

import pytest

from emsworker.core.process.clock import ticks
from emsworker.core.process.polling import PollInterval


def test_the_pause_is_a_tenth_of_how_long_nothing_came_between_its_bounds() -> None:
    pace, now = PollInterval(0.005, 1.0), ticks()
    quiet = [0.0, 0.04, 0.5, 4.0, 9.0, 60.0, 86400.0]
    pauses = [pace.pause_s(now + seconds) for seconds in quiet]
    assert pauses == pytest.approx([0.005, 0.005, 0.05, 0.4, 0.9, 1.0, 1.0], abs=0.003)


def test_what_comes_makes_it_quick_again() -> None:
    pace = PollInterval(0.005, 1.0)
    began = ticks()
    assert pace.pause_s(began + 30) == 1.0
    pace.note()
    assert pace.pause_s(began) == 0.005, "what came after the pause began counts, too"
    assert pace.pause_s(ticks()) == pytest.approx(0.005, abs=0.05)


def test_looking_costs_little_until_it_is_seldom() -> None:
    """In ten minutes from the last message on, so many looks as five a second would take in less than two and a half."""
    pace, began = PollInterval(0.005, 1.0), ticks()
    now, looks = began, 0
    while now < began + 600:
        now += pace.pause_s(now)
        looks += 1
    assert looks < 700
