"""What users do all day: cancel calls, share a group and bind tasks to machines."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

from emsworker import Ems
from emsworker.chaos import Deed, HandlerRun, Operation, ToldState, note_answer, note_operation, read_history
from emsworker.core.model import Receipt
from emsworker.store.groups.cancel import StateAtCancel
from tests.support.waiting import until
from verification.chaos.arena import Arena
from verification.chaos.daily_rules import strays, wrong_effects
from verification.chaos.names import BOOKED, CALLS, NEEDS, PLACES, SHARES
from verification.chaos.side import admin_of, now

_SETTLE_S = 90.0


class Use:
    """A part of what users do.

    Attributes:
        topic: of its messages; pause_s: between two acts.
    """

    topic: str
    pause_s = 0.1

    def __init__(self, arena: Arena) -> None:
        self._arena, self._admin = arena, admin_of(arena)
        self._chance = random.Random(arena.chance.random())

    def prepare(self) -> None:
        """Create the topic."""
        self._admin.create_topic(self.topic, partitions=2)

    def act(self, app: Ems, n: int) -> None:
        """Do the next thing; what fails is not confirmed."""
        raise NotImplementedError

    def settle(self) -> None:
        """End what is open, when nothing is hit any more."""

    def check(self) -> Iterator[str]:
        """Find what is wrong, besides what the checker of histories finds."""
        yield from ()

    def told(self) -> str:
        """What was done, for the table."""
        return f"{self.topic}: {len(self._runs())} runs"

    def _runs(self) -> list[HandlerRun]:
        return [run for run in read_history(self._arena.folder / "history").runs if run.topic == self.topic]


class Cancels(Use):
    """Calls are cancelled while they are delayed, wait, run, or wait for a retry."""

    topic = CALLS

    def __init__(self, arena: Arena) -> None:
        super().__init__(arena)
        self._sent: dict[str, Receipt[Any]] = {}
        self._booked: set[str] = set()
        self._asked: dict[str, float] = {}  # those of which no answer has come yet
        self._open: set[str] = set()  # those that a client had
        self._states: Counter[str] = Counter()
        self._cancelled: set[str] = set()

    def act(self, app: Ems, n: int) -> None:
        """Send a call, cancel one, and look whether those that ran have ended."""
        name = self._chance.choice(("work", "book"))
        arguments = [self._chance.choice((0, 0.05, 0.3)), self._chance.choice((0, 0, 2))]
        countdown = self._chance.choice((None, None, 0.5))
        receipt = app.send_task(name, arguments, topic=CALLS, group=CALLS, countdown=countdown)
        self._sent[receipt.id] = receipt
        if name == "book":
            self._booked.add(receipt.id)
        if self._chance.random() < 0.5:
            self._cancel(self._chance.choice(list(self._sent)[-12:]))
        if n % 10 == 0:
            self._look(app)

    def _cancel(self, uid: str) -> None:
        began = self._asked.setdefault(uid, now())
        state = self._admin.cancel(CALLS, uid)  # if that raises, it is asked again at the end
        told = now()
        del self._asked[uid]
        self._states[state.value] += 1
        if state is StateAtCancel.FINISHED:
            return
        note_operation(self._arena.log, Operation(Deed.CANCEL, CALLS, began, told, uids=frozenset({uid})))
        self._cancelled.add(uid)
        if state in (StateAtCancel.RUNNING, StateAtCancel.BEFORE):
            self._open.add(uid)  # it may have ended before its worker learned of that
        else:
            note_answer(self._arena.log, ToldState(uid, CALLS, told, "cancelled"))

    def _look(self, app: Ems) -> bool:
        """Note what has become of the calls that ran when they were cancelled; return true."""
        states = self._states_of(app, self._open)
        told = now()
        ended = {uid: state for uid, state in states.items() if state != "pending"}
        for uid, state in ended.items():
            note_answer(self._arena.log, ToldState(uid, CALLS, told, state))
        self._open -= ended.keys()
        return True

    def _states_of(self, app: Ems, uids: set[str]) -> dict[str, str]:
        if not uids:
            return {}
        results = app.results([self._sent[uid] for uid in sorted(uids)])
        results.look()
        return {one.id: one.status for one in results}

    def settle(self) -> None:
        """Have an answer of each."""
        for uid in list(self._asked):
            self._cancel(uid)
        with closing(Ems("settling", url=self._arena.url)) as app:
            with suppress(AssertionError):  # what stays pending is found by the checker
                until(lambda: self._look(app) and not self._open, _SETTLE_S, "cancelled calls end", 0.2)
            for uid, state in self._states_of(app, self._cancelled).items():
                note_answer(self._arena.log, ToldState(uid, CALLS, now(), state))

    def check(self) -> Iterator[str]:
        """Find effects of calls that are cancelled, and others without their effect."""
        effects = dict(self._arena.looker.rows("SELECT uid, COUNT(*) FROM orders WHERE grp = %s GROUP BY uid", BOOKED))
        with closing(Ems("checking", url=self._arena.url)) as app:
            yield from wrong_effects(self._states_of(app, self._booked), effects)

    def told(self) -> str:
        """How many were cancelled in which state."""
        return ", ".join(f"{count} cancelled {state}" for state, count in sorted(self._states.items()))


class Shares(Use):
    """A fair group with many tenants, one of whom sends most."""

    topic = SHARES

    def act(self, app: Ems, n: int) -> None:
        """Send some calls of the large tenant, or one of another."""
        large = self._chance.random() < 0.3
        tenant = "large" if large else f"tenant-{self._chance.randrange(300)}"
        for _ in range(8 if large else 1):
            fails = int(self._chance.random() < 0.1)
            app.send_task("share", [tenant, fails], topic=SHARES, group=SHARES, headers={"tenant": tenant})

    def check(self) -> Iterator[str]:
        """See that there was more than one lane."""
        if len(self._runs()) < 20:
            yield "hardly anything was shared"


class Places(Use):
    """Machines with and without the tags that groups require come and go."""

    topic = PLACES

    def act(self, app: Ems, n: int) -> None:
        """Send a message, which three groups run."""
        app.send(PLACES, {"n": n})

    def check(self) -> Iterator[str]:
        """Find runs on machines without the tags."""
        files = (self._arena.folder / "tags").iterdir()
        tags = {int(path.name): frozenset(filter(None, path.read_text().split(","))) for path in files}
        yield from strays(self._runs(), NEEDS, tags)
