"""What an exception means; what a handler asks for by name is always done."""

from typing import Any

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


@pytest.mark.parametrize(
    ("options", "error", "decision"),
    [
        ({"retry_for": ConnectionError}, ConnectionResetError("x"), RetryIn(7)),
        ({"retry_for": (ConnectionError, TimeoutError)}, ValueError("x"), Dead("ValueError: x")),
        ({"retry_for": ConnectionError}, TimeLimitExceeded("slow"), RetryIn(7)),
        ({"retry_for": ConnectionError}, Retry("later", countdown=2), RetryIn(2)),
        ({"no_retry_for": ValueError}, UnicodeError("x"), Dead("UnicodeError: x")),
        ({"no_retry_for": ValueError}, KeyError("x"), RetryIn(7)),
        ({"no_retry_for": ValueError, "on_error": "ignore"}, ValueError("x"), Done()),
        (
            {"retry_for": OSError, "no_retry_for": FileNotFoundError},
            FileNotFoundError("x"),
            Dead("FileNotFoundError: x"),
        ),
        ({"retry_after": lambda error: error.args[0]}, OSError(30), RetryIn(30)),
        ({"retry_after": lambda error: error.args[0]}, OSError("2m"), RetryIn(120)),
        ({"retry_after": lambda error: error.args[0]}, OSError(None), RetryIn(7)),
        ({"retry_after": lambda error: error.args[0]}, OSError("soon"), RetryIn(7)),
        ({"retry_after": lambda error: error.args[0]}, OSError(-1), RetryIn(7)),
        ({"retry_after": lambda error: error.args[0]}, OSError(), RetryIn(7)),
        ({"retry_after": lambda error: 1}, Retry("later", countdown=2), RetryIn(2)),
    ],
)
def test_classes_of_errors_and_their_own_delays(options: dict[str, Any], error: Exception, decision: Decision) -> None:
    assert HandlerOptions(**options).decide(LADDER, 1, error) == decision


def test_a_delay_of_its_own_gives_no_further_attempt() -> None:
    assert isinstance(HandlerOptions(retry_after=lambda error: 1).decide(LADDER, 3, OSError()), Dead)
