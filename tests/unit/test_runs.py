"""The limits of a run, as its handler sees and moves them."""

from typing import Any

import pytest

from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import ClaimRun, ThreadRun
from emsworker.core.codec import Decoder
from emsworker.core.errors import RunEnded
from emsworker.core.model import Claim, ClaimSource, Isolation, Message
from emsworker.core.process.clock import ticks
from emsworker.core.run import UNWATCHED
from emsworker.tasks.options import HandlerOptions


def test_the_limits_of_a_run() -> None:
    message = Message("t", 0, (5, b"u" * 16, None, None, b"", b"", "2026-01-01"), Decoder(("json",)))
    claim = Claim(1, 0, 5, 9, 4, 1, ClaimSource.STREAM, Isolation.NONE, "c", [message])
    claim_run = ClaimRun(claim, 1, 60.0, 0)
    run = ThreadRun(claim_run, claim_run.watch, message, 100.0)
    assert run.time_left == 0.0 and UNWATCHED.time_left == float("inf")
    with pytest.raises(RunEnded):
        run.extend(5)
    now = ticks()
    run = ThreadRun(claim_run, claim_run.watch, message, now)
    claim_run.start([message], HandlerOptions(soft_time_limit_s=10, hard_time_limit_s=20), now)
    assert 9 < run.time_left <= 10
    run.extend(5)
    assert run.time_left <= 10, "nothing is ever shortened"
    run.extend(15)
    assert 14.5 < run.time_left <= 15 and 24.5 < claim_run.watch.time_limit_s <= 25.1
    for wrong in (-1, float("nan"), float("inf"), "5", None, True):
        with pytest.raises(ValueError, match="number of seconds"):
            run.extend(wrong)  # type: ignore[arg-type]
    for fraction in (40, "x", "0.5", True):
        with pytest.raises(ValueError, match=r"fraction = .*must be a number between 0 and 1"):
            run.report_progress(fraction)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="text = 5: must be text"):
        run.report_progress(0.5, 5)  # type: ignore[arg-type]
    claim_run.done([Ended(message)])
    assert run.time_left == 0.0
    with pytest.raises(RunEnded):
        run.extend(1)


def test_a_batch_has_its_time_together() -> None:
    messages = [
        Message("t", 0, (offset, bytes([offset]) * 16, None, None, b"", b"", "2026-01-01"), Decoder(("json",)))
        for offset in (5, 6)
    ]
    claim_run = ClaimRun(Claim(1, 0, 5, 6, 4, 1, ClaimSource.STREAM, Isolation.NONE, "c", messages), 1, 2.0, 0)
    now = ticks()
    first, second = (ThreadRun(claim_run, claim_run.watch, message, now) for message in messages)
    claim_run.start(messages, HandlerOptions(), now)
    second.extend(30)
    assert 29 < first.time_left <= 30
    first.report_progress(0.5, "half\ud800" * 200)
    flush = claim_run.unfinished()
    assert flush is not None and [len(report.text) for report in flush.reports] == [500]
    assert flush.timeout_s >= 30, "the beat hears of it"
    with pytest.raises(RunEnded):
        first.report_progress(0.6)
    assert first.time_left == 0.0


def test_a_hang_is_not_ended_when_it_has_just_asked_for_more() -> None:
    message = Message("t", 0, (5, b"u" * 16, None, None, b"", b"", "2026-01-01"), Decoder(("json",)))
    claim_run = ClaimRun(Claim(1, 0, 5, 5, 4, 1, ClaimSource.STREAM, Isolation.NONE, "c", [message]), 1, 60.0, 0)
    now = ticks()
    claim_run.start([message], HandlerOptions(timeout_s=1), now - 5)
    ThreadRun(claim_run, claim_run.watch, message, now - 5).extend(3)
    no_channel: Any = None  # nothing is to be written
    assert not claim_run.give_up(no_channel, now - 5, None)
