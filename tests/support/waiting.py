"""Waiting for something to become true: polling with a deadline, never a bare sleep."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.support.machine import machine_s

T = TypeVar("T")
_POLL_S = 0.02


def until(look: Callable[[], T], timeout_s: float, what: str, poll_s: float = _POLL_S) -> T:
    """Call ``look`` until it returns something true, and return that.

    Args:
        look: called again and again.
        timeout_s: for how many seconds at most; they last longer on a busy machine (:mod:`tests.support.machine`).
        what: what is waited for, for the failure's text.
        poll_s: seconds between two looks.

    Raises:
        AssertionError: it did not become true in time.
    """
    deadline = machine_s() + timeout_s
    while True:
        seen = look()
        if seen:
            return seen
        if machine_s() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last seen: {seen!r})")
        time.sleep(poll_s)


def never(look: Callable[[], object], for_s: float, what: str) -> None:
    """Watch for ``for_s`` seconds that ``look`` stays false.

    Raises:
        AssertionError: it became true.
    """
    deadline = time.monotonic() + for_s
    while time.monotonic() < deadline:
        seen = look()
        assert not seen, f"{what}: {seen!r}"
        time.sleep(_POLL_S)
