"""Tasks that are cancelled, shared between tenants and bound to machines.

An effect is a row in ``orders``.
"""

import os
import time
from pathlib import Path
from typing import Any

from emsworker import Ems, Message
from emsworker.chaos import Recorder
from emsworker.extending.apps import Middleware
from emsworker.publish.transaction import Transaction
from verification.chaos.names import BOOKED, CALLS, NEEDS, PLACES, SHARES

_FOLDER = Path(os.environ["EMS_TEST_RECORD"])
_OPTIONS: dict[str, Any] = {"ladder": "300ms", "max_attempts": 1000}  # deaths must not use them up
_STEP_S = 0.01


class _TagsOfProcess(Middleware):
    """Writes down, for each process that runs anything, the tags that its worker was started with."""

    def before_run(self, message: Message, group: str) -> None:
        """Write them down before the first run."""
        path = _FOLDER / "tags" / str(os.getpid())
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            path.write_text(os.environ.get("EMS_TEST_TAGS", ""))


app = Ems("daily", middleware=[_TagsOfProcess(), Recorder(_FOLDER / "history", sync=False)])


def _work(seconds: float) -> None:
    """In steps, between which it can be interrupted."""
    for _ in range(round(seconds / _STEP_S)):
        time.sleep(_STEP_S)


def _fail(attempt: int, fails: int) -> None:
    if attempt <= fails:
        raise OSError("not yet")


@app.task(name="work", topic=CALLS, group=CALLS, bind=True, result=True, **_OPTIONS)
def work(self: Any, seconds: float, fails: int) -> None:
    """Work, and fail the first times."""
    _work(seconds)
    _fail(self.request.attempt, fails)


@app.task(name="book", topic=CALLS, group=CALLS, bind=True, transactional=True, result=True, **_OPTIONS)
def book(self: Any, transaction: Transaction, seconds: float, fails: int) -> None:
    """Have an effect, work, and fail the first times."""
    transaction.execute("INSERT INTO orders (grp, uid) VALUES (%s, %s)", (BOOKED, self.request.id))
    _work(seconds)
    _fail(self.request.attempt, fails)


@app.task(name="share", topic=SHARES, group=SHARES, fair="tenant", bind=True, transactional=True, **_OPTIONS)
def share(self: Any, transaction: Transaction, tenant: str, fails: int) -> None:
    """Have an effect for a tenant."""
    transaction.execute("INSERT INTO orders (grp, uid) VALUES (%s, %s)", (SHARES, self.request.id))
    _fail(self.request.attempt, fails)


@app.subscribe(PLACES, "p-any", **_OPTIONS)
def anywhere(message: Message) -> None:
    """Run on any machine."""


@app.subscribe(PLACES, "p-gpu", requires=tuple(NEEDS["p-gpu"]), transactional=True, **_OPTIONS)
def render(transaction: Transaction, message: Message) -> None:
    """Have an effect on a machine with a GPU."""
    transaction.execute("INSERT INTO orders (grp, uid) VALUES (%s, %s)", ("p-gpu", message.id))


@app.subscribe(PLACES, "p-both", requires=tuple(NEEDS["p-both"]), **_OPTIONS)
def render_here(message: Message) -> None:
    """Run on a machine with two tags, and fail at first, so that retries are bound to them, too."""
    if message.body["n"] % 5 == 0:
        _fail(message.attempt, 1)
