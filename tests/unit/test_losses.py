"""Who is charged when a transactional handler's connection was lost: a decision without a server."""

import dataclasses
from typing import Any

import pytest

from emsworker.consume.losses import Losses, LostRun, judge
from emsworker.core.codec import Decoder
from emsworker.core.errors import ConnectionLostInHandler
from emsworker.core.model import Claim, ClaimSource, Isolation, Message
from emsworker.core.servers import ServerRun
from emsworker.tasks.options import HandlerOptions

CLAIM = Claim(1, 0, 5, 5, 4, 7, ClaimSource.STREAM, Isolation.ALONE, "c")
MESSAGE = Message("t", 0, (5, b"", None, None, b"", b"", ""), Decoder())
SERVER = ServerRun(("a", 3306, 1), 500.0)
RUN = LostRun(CLAIM, [MESSAGE], HandlerOptions(), 100.0, 61.25, SERVER, cut=True, why="(2013) gone")


def verdict(run: LostRun = RUN, server: ServerRun = SERVER, **more: Any) -> ConnectionLostInHandler | str:
    return judge(run, **{"times": 3, "server": server, "since_s": 62.0, "committed": False, **more})


def test_g_a_loss_under_a_message_that_runs_alone_is_charged_and_says_where_to_look() -> None:
    error = verdict()
    assert isinstance(error, ConnectionLostInHandler)
    for part in ("3 times in a row", "after 61.2 s", "wait_timeout", "idle_transaction_timeout", "proxy"):
        assert part in str(error)
    assert "lost while it ran, this time after" in str(verdict(times=1))


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ({"run": dataclasses.replace(RUN, claim=dataclasses.replace(CLAIM, isolation=Isolation.FEW))}, "one loss"),
        ({"server": ServerRun(("b", 3306, 2), 500.0)}, "another server"),
        ({"server": ServerRun(("a", 3306, 1), 62.0)}, "restarted"),
        ({"run": dataclasses.replace(RUN, cut=False)}, "could not serve"),
        ({"committed": True}, "committed"),
        ({"committed": None}, "another owner"),
    ],
)
def test_g_a_loss_that_is_not_the_messages_fault_charges_nobody(case: dict[str, Any], reason: str) -> None:
    found = verdict(**case)
    assert isinstance(found, str) and reason in found


def test_g_losses_are_counted_until_the_message_ends_otherwise() -> None:
    losses = Losses()
    assert [losses.note(RUN), losses.note(RUN)] == [1, 2]
    losses.forget(dataclasses.replace(CLAIM, messages=[MESSAGE]))
    assert losses.note(RUN) == 1
