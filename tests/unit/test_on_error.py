"""What an exception means; what a handler asks for by name is always done."""

import pytest

from emsworker.core.errors import Ignore, Reject, Retry, TimeLimitExceeded
from emsworker.core.ladder import Dead, Decision, Done, Ladder, RetryIn
from emsworker.tasks.options import HandlerOptions

LADDER = Ladder.parse("7s", max_attempts=3, jitter=0)


@pytest.mark.parametrize(
    ("on_error", "error", "decision"),
    [
        ("retry", ValueError("x"), RetryIn(7)),
        ("dead", ValueError("x"), Dead("ValueError: x")),
        ("ignore", ValueError("x"), Done()),
        ("dead", TimeLimitExceeded("slow"), Dead("TimeLimitExceeded: slow")),
        ("ignore", TimeLimitExceeded("slow"), Done()),
        ("dead", Retry("later", countdown=2), RetryIn(2)),
        ("ignore", Retry("later", countdown=2), RetryIn(2)),
        ("ignore", Reject("bad"), Dead("bad")),
        ("dead", Ignore("never mind"), Done()),
    ],
)
def test_on_error(on_error: str, error: Exception, decision: Decision) -> None:
    assert HandlerOptions(on_error=on_error).decide(LADDER, 1, error) == decision


def test_an_attempt_too_many_is_dead_whatever_the_handler_asks_for() -> None:
    assert isinstance(HandlerOptions().decide(LADDER, 3, Retry(countdown=1)), Dead)
