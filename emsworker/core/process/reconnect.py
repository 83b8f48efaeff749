"""Calls that go on after a lost connection, until their time is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from emsworker.core.errors import Conflict, ConnectionLost, DiskFull, StoreUnavailable
from emsworker.core.process.clock import ticks

T = TypeVar("T")


def until_connected(work: Callable[[], T], timeout_s: float) -> T:
    """Call ``work``, and retry it with growing random pauses while the server is unavailable.

    Raises:
        StoreUnavailable: ``timeout_s`` seconds have passed.
    """
    began = ticks()
    try:
        return work()
    except (ConnectionLost, Conflict) as error:  # the common case needs no machinery, and does not load it
        left_s = timeout_s - (ticks() - began)
        if left_s <= 0:  # it did not answer for that long
            raise _unreachable(timeout_s, began, error) from error
    from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

    waits = Retrying(
        retry=retry_if_exception_type((ConnectionLost, Conflict)),
        stop=stop_after_delay(left_s),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
    )
    try:
        return waits(work)
    except RetryError as error:
        cause = error.last_attempt.exception()
        raise _unreachable(timeout_s, began, cause) from cause


def _unreachable(timeout_s: float, began: float, cause: BaseException | None) -> StoreUnavailable:
    for_s = max(timeout_s, int(ticks() - began))  # one that does not answer is waited for beyond the time-out
    if isinstance(cause, DiskFull):
        return StoreUnavailable(f"MySQL has had no room to write for {for_s:g} s: {cause}")
    return StoreUnavailable(f"MySQL could not be reached for {for_s:g} s: {cause}")
