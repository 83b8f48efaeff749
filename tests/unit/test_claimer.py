"""The claimer: what becomes of a hint that leads to nothing."""

from typing import Any

import pytest

from emsworker.consume.claimer import Claimer
from emsworker.consume.hints import Hint
from emsworker.core.codec import Decoder
from emsworker.core.model import Isolation, Order
from emsworker.core.work import Claimant, NothingClaimed

STREAM, ORDERED = Hint(1, "stream", 3), Hint(1, "stream", 3, exclusive=True)
RETRIES, WAITING = Hint(1, "retries"), Hint(1, "waiting")


class Hints:
    """A poller that remembers what it is told; a channel where there is nothing."""

    alone = True

    def __init__(self, answer: NothingClaimed) -> None:
        self.answer, self.forgotten, self.held = answer, list[Hint](), list[Hint]()

    def forget(self, hint: Hint) -> None:
        self.forgotten.append(hint)

    def hold_hint(self, hint: Hint, seconds: float) -> None:
        self.held.append(hint)

    def take(self, *_: Any, **how: Any) -> NothingClaimed:
        return self.answer

    take_range = take_waiting = take_retries = take


class Group:
    order = Order.NONE


def claimer_of(hints: Any) -> Claimer:
    return Claimer(hints, hints, 1000, Decoder(("json",)))


def claimant(claimer: Claimer, hint: Hint, isolation: Isolation = Isolation.LAST) -> Claimant:
    group: Any = Group()
    return claimer.claimant(hint, group, group, "c", 1, isolation)


@pytest.mark.parametrize("hint", [STREAM, ORDERED, RETRIES, WAITING])
def test_a_hint_that_leads_to_nothing_is_forgotten(hint: Hint) -> None:
    hints = Hints(NothingClaimed.EMPTY)
    claimer = claimer_of(hints)
    assert claimer.take(hint, claimant(claimer, hint), ()) is None
    assert hints.forgotten == [hint] and not hints.held and not claimer.was_busy


def test_a_hint_is_held_while_what_is_there_may_not_be_taken() -> None:
    hints = Hints(NothingClaimed.EMPTY)
    claimer = claimer_of(hints)
    assert claimer.take(WAITING, claimant(claimer, WAITING, Isolation.FEW), ()) is None
    assert hints.held == [WAITING] and not hints.forgotten


def test_a_cursor_that_another_client_holds_is_tried_again() -> None:
    hints = Hints(NothingClaimed.BUSY)
    claimer = claimer_of(hints)
    assert claimer.take(STREAM, claimant(claimer, STREAM), ()) is None
    assert claimer.was_busy and not hints.forgotten


@pytest.mark.parametrize("hint", [RETRIES, WAITING])
def test_a_hint_is_forgotten_too_if_an_earlier_claim_was_lost_on_the_way(hint: Hint) -> None:
    """Or it would be followed again at once, with the same claim, until the flusher has learned of its loss."""
    hints = Hints(NothingClaimed.EMPTY)
    claimer = claimer_of(hints)
    claimer.leave(hint, is_busy=True)
    assert hints.forgotten == [hint] and not claimer.was_busy
    claimer.leave(STREAM, is_busy=True)
    assert hints.forgotten == [hint] and claimer.was_busy
