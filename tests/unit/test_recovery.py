"""Who is charged for a lost claim, and by whose ladder: decisions without a server."""

import dataclasses
from typing import Any

import pytest

from emsworker.beat.recovery import Verdict, failure_of, judge, may_come_back
from emsworker.core.codec import encode_headers
from emsworker.core.ladder import Ladder
from emsworker.core.lost import Lost, Place, Suspect
from emsworker.core.model import Claim, ClaimSource, HandlerRow, Isolation, Outcome

GROUP = Ladder.parse("10s", max_attempts=16, jitter=0)
CLAIM = Claim(1, 0, 5, 9, 4, 7, ClaimSource.STREAM, Isolation.NONE, "c")
LOST = Lost(Place(1, 2, 0, 5, 7), CLAIM, None, True, None, "10s", 16)


def lost(isolation: Isolation = Isolation.NONE, source: ClaimSource = ClaimSource.STREAM, **more: Any) -> Lost:
    claim = dataclasses.replace(CLAIM, isolation=isolation, source=source)
    return dataclasses.replace(LOST, claim=claim, **more)


@pytest.mark.parametrize(
    ("case", "verdict"),
    [
        (lost(), Verdict(Outcome.ORPHANED, False, Isolation.FEW)),
        (lost(Isolation.FEW), Verdict(Outcome.ORPHANED, False, Isolation.ALONE)),
        (lost(Isolation.ALONE), Verdict(Outcome.ORPHANED, False, Isolation.LONGER)),
        (lost(Isolation.ALONE, running=5), Verdict(Outcome.ORPHANED, True, Isolation.ALONE)),
        (lost(Isolation.ALONE, running=4), Verdict(Outcome.ORPHANED, False, Isolation.LONGER)),
        (lost(Isolation.ALONE, running=5, over_s=3.0), Verdict(Outcome.ORPHANED, False, Isolation.LONGER)),
        (lost(Isolation.LAST, running=5, over_s=3.0), Verdict(Outcome.ORPHANED, True, Isolation.LAST)),
        (lost(Isolation.LAST), Verdict(Outcome.ORPHANED, False, Isolation.LAST)),
        (lost(source=ClaimSource.RETRY), Verdict(Outcome.ORPHANED, False, Isolation.ALONE)),
        (lost(orphaned=False), Verdict(Outcome.TIMEOUT, True, Isolation.NONE)),
        (lost(Isolation.FEW, orphaned=False), Verdict(Outcome.TIMEOUT, True, Isolation.FEW)),
    ],
)
def test_each_crash_narrows_the_suspicion_down(case: Lost, verdict: Verdict) -> None:
    assert judge(case, up_s=1e6, lease_s=15) == verdict


@pytest.mark.parametrize("isolation", [Isolation.NONE, Isolation.FEW, Isolation.LONGER])
@pytest.mark.parametrize("source", ClaimSource)
def test_a_death_that_another_message_is_charged_for_raises_no_suspicion(
    isolation: Isolation, source: ClaimSource
) -> None:
    verdict = judge(lost(isolation, source), up_s=1e6, lease_s=15, explained=True)
    assert verdict == Verdict(Outcome.ORPHANED, False, isolation)


@pytest.mark.parametrize(
    ("over_s", "up_s", "charges"),
    [
        (3.0, 1000.0, True),
        (3.0, 2.0, False),  # it ran out while there was no server
        (3.0, 10.0, False),  # there was one again, for too short a time to renew it for sure
        (None, 2.0, True),  # its supervisor saw it die and said so
    ],
)
def test_nobody_is_charged_whose_lease_ran_out_with_the_server_away(
    over_s: float | None, up_s: float, charges: bool
) -> None:
    assert judge(lost(Isolation.LAST, running=5, over_s=over_s), up_s, lease_s=15).charges is charges


@pytest.mark.parametrize(
    ("more", "up_s", "waits"),
    [
        ({"over_s": 3.0}, 2.0, True),
        ({"over_s": 3.0}, 6.0, False),  # a third of the lease is over
        ({"over_s": 3.0}, 1000.0, False),
        ({"over_s": None}, 2.0, False),  # its supervisor saw it die and said so
        ({"over_s": 3.0, "orphaned": False}, 2.0, False),  # it is there, and hangs
    ],
)
def test_owners_have_time_to_come_back_after_a_restart_of_the_server(
    more: dict[str, Any], up_s: float, waits: bool
) -> None:
    assert may_come_back(lost(**more), up_s, lease_s=15) is waits


def suspect(task: str | None, attempt: int = 1) -> Suspect:
    return Suspect(5, attempt, encode_headers({"ems-task": task} if task else {}))


TASKS = {
    "quick": HandlerRow("quick", "retry", "200ms", 3),
    "few": HandlerRow("few", "retry", None, 2),
    "dead": HandlerRow("dead", "dead", None, None),
    "ignored": HandlerRow("ignored", "ignore", None, None),
}


@pytest.mark.parametrize(
    ("charged", "retry_in_s", "dead"),
    [
        (suspect("quick"), 0.2, None),
        (suspect("quick", 2), 0.2, None),
        (suspect("quick", 3), None, "used up its 3 attempts"),
        (suspect("few"), 10.0, None),
        (suspect("few", 2), None, "used up its 2 attempts"),
        (suspect("dead"), None, "WorkerLost: its worker died while running it"),
        (suspect("ignored"), None, None),
        (suspect("unknown", 3), 10.0, None),
        (suspect(None, 16), None, "used up its 16 attempts"),
        (Suspect(5, 3, b"{damaged"), 10.0, None),
        (Suspect(5, 3, encode_headers({"ems-task": "\\ud800"}).replace(b"\\\\u", b"\\u")), 10.0, None),
        (Suspect(5, 3, b""), 10.0, None),
    ],
)
def test_a_tasks_own_options_decide_about_a_lost_run(charged: Suspect, retry_in_s: float, dead: str | None) -> None:
    failure = failure_of(charged, Outcome.ORPHANED, GROUP, TASKS)
    assert (failure.offset, failure.attempt, failure.retry_in_s, failure.dead) == (5, charged.attempt, retry_in_s, dead)
    assert failure.suspect
    assert not failure_of(charged, Outcome.TIMEOUT, GROUP, TASKS).suspect


def test_a_subscription_takes_calls_of_tasks_too() -> None:
    handlers = {"": HandlerRow("", "retry", "50ms", 2)}
    assert failure_of(suspect("quick"), Outcome.TIMEOUT, GROUP, handlers).retry_in_s == 0.05
    assert failure_of(suspect(None, 2), Outcome.TIMEOUT, GROUP, handlers).dead
