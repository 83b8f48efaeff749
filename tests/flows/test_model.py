"""Random flows against a small model: runs, acks, signals, cancels and crashes, with one call of a store at a time.

Each run of a flow, and each run of a call, is a thread that stands still before every transaction of its own; chance
decides who goes on. A run may die there, before or after its commit; and a message whose run stands still is delivered
to another one as well, as if its lease were over: the first goes on later, and must not change anything. Some flows are
coroutines, whose branches go on in an order of chance; in each of them everything is in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from emsworker import Ems, Transaction
from emsworker.core.codec import decode_headers
from emsworker.core.errors import Reject
from emsworker.core.ids import new_uid
from emsworker.core.model import FOLLOW_HEADER, TASK_HEADER
from emsworker.core.process.threads import ThreadPool
from emsworker.flows import AsyncFlow, CallFailed, Flow, FlowCancelled, FlowFailed, FlowHandle
from emsworker.flows.errors import FlowEnded
from emsworker.flows.memory import store_of
from emsworker.flows.rows import CallEnd, FlowRow, StoredError
from emsworker.flows.store import flow_store as mysql_store
from emsworker.flows.store.waking import send_wake
from emsworker.flows.stores import store_for
from emsworker.store.engine.sql import Sql
from tests.flows.test_memory import Connection
from tests.process.stream import Stream

_STEPS = 6000
Op = tuple[Any, ...]
T = TypeVar("T")


class Died(BaseException):
    """The process of a run is killed."""


class Actor(threading.Thread):
    """A run that stands still before each of its transactions."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self.dies: str | None = None
        self.in_transaction = False
        self.is_dead = False
        self.over = False
        self.error: BaseException | None = None

    def run(self) -> None:
        self._go.acquire()
        try:
            if self.dies is None:
                self._work()
        except Died:
            pass
        except BaseException as error:
            self.error = error
        self.over = True
        self._stands.release()

    def gate(self) -> None:
        """Stand still until chance lets it go on."""
        if self.is_dead:  # others of its coroutines may ask for something before the process is gone
            raise Died
        self._stands.release()
        self._go.acquire()
        if self.dies == "before":
            self.is_dead = True
            raise Died

    def step(self) -> None:
        """Let it go on, until it stands still again or is over."""
        if not self.is_alive():
            self.start()
        self._go.release()
        assert self._stands.acquire(timeout=60), "it stands still or ends"


def _gate() -> None:
    actor = threading.current_thread()
    if isinstance(actor, Actor) and not actor.in_transaction:
        actor.gate()


def _after() -> None:
    actor = threading.current_thread()
    if isinstance(actor, Actor) and actor.dies == "after" and not actor.in_transaction:
        actor.is_dead = True
        raise Died


class Pool(ThreadPool):
    """Runs what coroutines call that blocks in the thread of their run, in an order of chance."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(0)
        self._chance = chance

    async def run(self, call: Callable[[], T], name: str = "") -> T:
        for _ in range(self._chance.randint(0, 3)):
            await asyncio.sleep(0)
        return call()


class World:
    """A store of flows, the messages that were sent, and the effects."""

    def __init__(self, app: Ems, chance: random.Random) -> None:
        self.app, self.chance = app, chance
        self.store: Any = store_for(app, app.settings.topic)
        self.acked: set[bytes] = set()
        self.runs: dict[Actor, Any] = {}
        self.owners: dict[bytes, Actor] = {}  # of the claim of each message: the last one that it was delivered to

    def effects(self) -> list[Any]:
        """Everything that was committed, in order."""
        raise NotImplementedError

    def effect(self, transaction: Transaction, what: Any) -> None:
        """Do something in a transaction."""
        raise NotImplementedError

    def due(self) -> list[tuple[bytes, dict[str, str], Any]]:
        """The messages that may be delivered, with their headers and bodies."""
        raise NotImplementedError

    def end(self, transaction: Transaction, place: Sequence[int], end: CallEnd) -> None:
        """Tell the end of a call, as its ack does."""
        raise NotImplementedError

    def wake(self, flow: FlowRow) -> None:
        """Send a flow another message, as the beat does if its own has ended without it."""
        raise NotImplementedError

    @contextlib.contextmanager
    def gated(self) -> Iterator[None]:
        """Let every transaction of a run wait for its turn."""
        transaction = self.app.transaction
        names = ("begin", "abegin", "checkpoint", "acheckpoint", "write", "awrite", "ends_of")
        for name in names:
            method = getattr(self.store, name)
            setattr(self.store, name, (_gated_coroutine if name[0] == "a" else _gated)(method))

        @contextlib.contextmanager
        def waiting(**options: Any) -> Iterator[Any]:
            _gate()
            with _whole(), transaction(**options) as opened:
                yield opened
            _after()

        self.app.transaction = waiting  # type: ignore[method-assign]
        broker: Any = self.app.broker
        pool, broker.pool = broker.pool, Pool(self.chance)
        try:
            yield
        finally:
            broker.pool = pool
            del self.app.transaction  # type: ignore[method-assign]
            for name in names:
                delattr(self.store, name)


@contextlib.contextmanager
def _whole() -> Iterator[None]:
    actor: Any = threading.current_thread()
    actor.in_transaction = True
    try:
        yield
    finally:
        actor.in_transaction = False


def _gated(method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        _gate()
        value = method(*args)
        _after()
        return value

    return call


def _gated_coroutine(method: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any) -> Any:
        _gate()
        value = await method(*args)
        _after()
        return value

    return call


class MysqlWorld(World):
    """On a real server."""

    def __init__(self, app: Ems, chance: random.Random, stream: Stream) -> None:
        super().__init__(app, chance)
        self._stream = stream
        self._database = Sql(f"`{stream.url.rsplit('/', 1)[1]}`")
        self._whats: list[Any] = []

    def effects(self) -> list[Any]:
        return [self._whats[n] for (n,) in self._stream.rows("SELECT n FROM effect ORDER BY id")]

    def effect(self, transaction: Transaction, what: Any) -> None:
        self._whats.append(what)
        transaction.execute("INSERT INTO effect (n, pid) VALUES (%s, 0)", (len(self._whats) - 1,))

    def due(self) -> list[tuple[bytes, dict[str, str], Any]]:
        rows = self._stream.rows(
            "SELECT uid, headers, body FROM ems_message WHERE uid IS NOT NULL UNION ALL "
            "SELECT uid, headers, body FROM ems_outbox WHERE due_at <= UTC_TIMESTAMP(6)"
        )
        return [(bytes(uid), dict(decode_headers(headers)), json.loads(body)) for uid, headers, body in rows]

    def end(self, transaction: Transaction, place: Sequence[int], end: CallEnd) -> None:
        for statement in mysql_store.end_statements(self._database, place[0], place[1], [end]):
            transaction.execute(statement)

    def wake(self, flow: FlowRow) -> None:
        owner = new_uid()
        self._stream.run("UPDATE ems_flow SET state = 'ready', owner = %s WHERE id = %s", owner, flow.id)
        with self.app.transaction() as transaction:
            transaction.execute(send_wake(self._database, flow.id, owner))


class MemoryWorld(World):
    """In memory."""

    def __init__(self, app: Ems, chance: random.Random, connection: Connection) -> None:
        super().__init__(app, chance)
        self._connection = connection
        self._broker: Any = app.broker

    def effects(self) -> list[Any]:
        return list(self._connection.rows)

    def effect(self, transaction: Transaction, what: Any) -> None:
        transaction.execute("", what)

    def due(self) -> list[tuple[bytes, dict[str, str], Any]]:
        self._broker.advance(0.05)
        now = self._broker.now()
        found = [kept.read(self._broker.decoder, 1) for kept in self._broker.log.accepted if kept.due_at <= now]
        return [(message.uid, dict(message.headers), message.body) for message in found]

    def end(self, transaction: Transaction, place: Sequence[int], end: CallEnd) -> None:
        store_of(self._broker).end(place[0], place[1], end)

    def wake(self, flow: FlowRow) -> None:
        self.store._flows[flow.id].row.state = "waiting"
        self.store.wake(None, flow.id)


# -- flows, and what is to come of them --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A random flow.

    Attributes:
        branches: what each of its coroutines does; a plain function is one branch.
        fails: after all of them.
    """

    branches: list[list[Op]]
    is_async: bool
    fails: bool

    @property
    def ops(self) -> list[Op]:
        """All that it does."""
        return [op for branch in self.branches for op in branch]

    def effects(self) -> list[Any]:
        """The effects of a flow that was not cancelled, in any order."""
        effects: list[Any] = []
        for kind, name, count in self.ops:
            if kind in ("transaction", "call"):
                effects.append(name)
            if kind == "gather":
                effects += [f"{name}.{n}" for n in range(count)]
        return effects

    def undone(self) -> list[list[Any]]:
        """The effects of its undoing, in the order of each branch."""
        return [[f"undo {name}" for kind, name, _ in reversed(ops) if kind == "undo"] for ops in self.branches]

    def emitted(self) -> list[list[str]]:
        """What it emits, in the order of each branch."""
        return [[name for kind, name, _ in ops if kind == "emit"] for ops in self.branches]


def make_program(chance: random.Random, key: str) -> Program:
    """A random flow; with each wait goes the number of those before it in its branch."""
    is_async = chance.random() < 0.5
    branches = [
        _branch(chance, f"{key}.{place}", chance.randint(1, 4) if is_async else chance.randint(2, 7))
        for place in range(chance.randint(1, 3) if is_async else 1)
    ]
    return Program(branches, is_async, chance.random() < 0.4)


def _branch(chance: random.Random, key: str, length: int) -> list[Op]:
    ops: list[Op] = []
    kinds = ("step", "transaction", "call", "gather", "sleep", "wait", "undo", "emit")
    for number in range(length):
        kind = chance.choice(kinds)
        count = chance.randint(0, 4) if kind == "gather" else sum(op[0] == "wait" for op in ops)
        ops.append((kind, f"{key}.{number}", count))
    return ops


class Simulation:
    """Some flows in a world, moved by chance until all have ended.

    Args:
        fails: the number of deaths of processes, at most.
    """

    def __init__(self, world: World, chance: random.Random, flows: int = 4, deaths: int = 6) -> None:
        self.world, self.chance, self.deaths = world, chance, deaths
        self.trouble: list[str] = []
        self.steps = Counter[str]()
        app = world.app

        @app.task(name=f"effect-{chance.random()}", max_attempts=1)
        def effect(name: str) -> str:
            return name

        @app.flow(name=f"program-{chance.random()}", max_attempts=1)
        def plain(flow: Flow, branches: list[list[Op]], fails: bool) -> None:
            for kind, name, count in branches[0]:
                self._do(flow, kind, name, count)
            if fails:
                raise ArithmeticError

        @app.flow(name=f"coroutines-{chance.random()}", max_attempts=1)
        async def coroutines(flow: AsyncFlow, branches: list[list[Op]], fails: bool) -> None:
            await asyncio.gather(*(self._do_all(flow, place, ops) for place, ops in enumerate(branches)))
            if fails:
                raise ArithmeticError

        self._effect, self._flows = effect, {one.name: one for one in (plain, coroutines)}
        self._programs = {f"f{n}-{chance.random()}": make_program(chance, f"f{n}") for n in range(flows)}
        self._signals = [
            (key, f"go {place}")
            for key, program in self._programs.items()
            for place, ops in enumerate(program.branches)
            for kind, *_ in ops
            if kind == "wait"
        ]
        self._given = Counter[tuple[str, str]]()
        chance.shuffle(self._signals)
        self._cancels = [key for key in self._programs if chance.random() < 0.15]
        self._frozen: dict[str, int] = {}
        self._was_late, self._woken = False, 0
        self._handles: dict[str, FlowHandle[None]] = {
            key: (coroutines if program.is_async else plain).start(program.branches, program.fails, id=key)
            for key, program in self._programs.items()
        }

    def _do(self, flow: Flow, kind: str, name: str, count: int) -> None:
        if kind == "step":
            flow.step(lambda: self.steps.update([name]))
        if kind == "transaction":
            flow.transaction(self.world.effect, name)
        if kind == "call":
            assert flow.call(self._effect.s(name)) == name
        if kind == "gather":
            names = [f"{name}.{n}" for n in range(count)]
            assert flow.gather(self._effect.s(one) for one in names) == names
        if kind == "sleep":
            flow.sleep(0.02)
        if kind == "wait":
            assert flow.wait_for("go 0") == count, "in the order in which they were given"
        if kind == "undo":
            flow.undo(self._effect.s(f"undo {name}"))
        if kind == "emit":
            flow.emit(name)

    async def _do_all(self, flow: AsyncFlow, place: int, ops: list[Op]) -> None:
        for kind, name, count in ops:
            await self._await(flow, place, kind, name, count)

    async def _await(self, flow: AsyncFlow, place: int, kind: str, name: str, count: int) -> None:
        if kind == "step":
            assert await flow.step(self._astep, name) == name
        if kind == "transaction":
            await flow.transaction(self.world.effect, name)
        if kind == "call":
            assert await flow.call(self._effect.s(name)) == name
        if kind == "gather":
            names = [f"{name}.{n}" for n in range(count)]
            assert await flow.gather(self._effect.s(one) for one in names) == names
        if kind == "sleep":
            await flow.sleep(0.02)
        if kind == "wait":
            assert await flow.wait_for(f"go {place}") == count, "in the order in which they were given"
        if kind == "undo":
            flow.undo(self._effect.s(f"undo {name}"))
        if kind == "emit":
            await flow.emit(name)

    async def _astep(self, name: str) -> str:
        for _ in range(self.chance.randint(0, 5)):
            await asyncio.sleep(0)
        self.steps.update([name])
        return name

    def run(self) -> list[str]:
        """Move everything until nothing is left to do; return what went wrong."""
        with self.world.gated():
            for _ in range(_STEPS):
                self._move()
                if self._is_quiet():
                    break
        self._check()
        return self.trouble

    def _is_quiet(self) -> bool:
        world = self.world
        if world.runs or self._signals or self._cancels:
            return False
        sleeps = self._sleeps()  # before what is due: a time may come between the two looks
        return all(uid in world.acked for uid, *_ in world.due()) and (
            self._all_ended() or not (sleeps or self._wakes_lost())
        )

    def _wakes_lost(self) -> bool:
        """Wake flows whose message has ended: a first delivery of it took the run from the second one, and died."""
        rows = [self.world.store.find(key) for key in self._programs]
        lost = [row for row in rows if row.state in ("ready", "running") and row.owner in self.world.acked]
        if not self._was_late or self._woken > len(self._programs):
            return False
        for row in lost:
            self._woken += 1
            self.world.wake(row)
        return bool(lost)

    def _all_ended(self) -> bool:
        return all(handle.state in ("done", "failed", "cancelled") for handle in self._handles.values())

    def _sleeps(self) -> bool:
        """Whether a flow only waits for a time, which comes."""
        for key in self._programs:
            row = self.world.store.find(key)
            if row.state == "waiting" and "sleep" in row.waits:
                now = self.world.app.server_time(0.0)
                if any(
                    not step.is_ended and step.due_at is not None and step.due_at > now
                    for step in self.world.store.steps_of(row)
                ):
                    return True
        return False

    def _move(self) -> None:
        world, chance = self.world, self.chance
        if self._signals and chance.random() < 0.05:
            key, name = self._signals.pop()
            with contextlib.suppress(FlowEnded):
                world.app.signal(key, name, self._given[key, name])
            self._given[key, name] += 1
        if self._cancels and chance.random() < 0.01:
            key = self._cancels.pop()
            if self._handles[key].cancel():
                self._frozen[key] = len(self._own_effects(key))
        if not world.runs or chance.random() < 0.2:
            self._deliver()
        if world.runs:
            actor = chance.choice(list(world.runs))
            if self.deaths and chance.random() < 0.03:
                self.deaths -= 1
                actor.dies = chance.choice(("before", "after"))
            actor.step()
            if actor.over:
                self._end(actor)

    def _own_effects(self, key: str) -> list[Any]:
        """The transactions of a flow itself; calls that were sent before a cancel may still run."""
        own = {name for kind, name, _ in self._programs[key].ops if kind == "transaction"}
        return [one for one in self.world.effects() if one in own]

    def _deliver(self) -> None:
        world = self.world
        under_way = [message[0] for message in world.runs.values()]
        for message in world.due():
            is_free = message[0] not in under_way
            is_late = under_way.count(message[0]) == 1 and self.chance.random() < 0.05  # its lease is over
            if message[0] not in world.acked and (is_free or is_late) and self.chance.random() < 0.5:
                actor = Actor(lambda message=message: self._work(*message))
                world.runs[actor] = message
                world.owners[message[0]] = actor
                self._was_late = self._was_late or is_late

    def _work(self, uid: bytes, headers: dict[str, str], body: Any) -> None:
        world = self.world
        follow = headers.get(FOLLOW_HEADER)
        if follow is None:
            message = SimpleNamespace(uid=uid, headers=headers, body=body, id=uid.hex(), attempt=1)
            with contextlib.suppress(Reject):
                left = self._flows[headers[TASK_HEADER]].call(message)  # type: ignore[arg-type]
                if left is not None:
                    asyncio.run(left)
            return
        place = [int(one) for one in follow.rpartition(":")[2].split(".")]
        with world.app.transaction() as transaction:
            if world.owners[uid] is not threading.current_thread():
                return  # the fence of its claim
            world.effect(transaction, body[0][0])
            world.end(transaction, place, CallEnd(place[2], json.dumps(body[0][0]).encode(), None))
            world.acked.add(uid)
        if self.chance.random() < 0.2:  # the beat has told that it was lost, a moment too late
            with world.app.transaction() as transaction:
                world.end(transaction, place, CallEnd(place[2], None, StoredError("CallLost", "was not")))

    def _end(self, actor: Actor) -> None:
        """What follows from the end of a run: its ack, or another run of its message."""
        message = self.world.runs.pop(actor)
        if actor.error is not None:
            raise actor.error
        if actor.dies is None and self.world.owners[message[0]] is actor:
            self.world.acked.add(message[0])

    def _check(self) -> None:
        effects = Counter(self.world.effects())
        self.trouble += [f"{what} was done {count} times" for what, count in effects.items() if count > 1]
        order = self.world.effects()
        for key, program in self._programs.items():
            handle = self._handles[key]
            if key in self._frozen and handle.state != "cancelled":
                self.trouble.append(f"{key} was cancelled, and is {handle.state}: {program}")
                continue
            if handle.state not in ("done", "failed", "cancelled"):
                row = self.world.store.find(key)
                self.trouble.append(f"{key} is {row.state}, and waits for {row.waits}: {program}")
                continue
            if handle.state == "cancelled":
                if len(self._own_effects(key)) > self._frozen.get(key, -1):
                    self.trouble.append(f"{key} went on after it was cancelled")
                continue
            if (handle.state == "failed") != program.fails:
                self.trouble.append(f"{key} is {handle.state}: {self._failure(handle)}: {program}")
            if missing := [one for one in program.effects() if not effects[one]]:
                self.trouble.append(f"{key} is {handle.state} without {missing}")
            self._check_order(f"{key} was undone", order, program.undone(), happened=program.fails)
            self._check_order(f"{key} has emitted", list(handle.values()), program.emitted())

    def _check_order(
        self, what: str, found: Sequence[Any], branches: Sequence[Sequence[Any]], *, happened: bool = True
    ) -> None:
        for wanted in branches:
            mine = [one for one in found if one in wanted]
            if mine != (wanted if happened else []):
                self.trouble.append(f"{what}: {mine} instead of {wanted if happened else []}")

    def _failure(self, handle: Any) -> str:
        try:
            handle.get(0)
        except (FlowFailed, FlowCancelled, CallFailed) as error:
            return str(error)
        return ""


# -- tests ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_in_memory(seed: int) -> None:
    chance = random.Random(seed)
    app, connection = Ems("model", url="mysql://nobody@127.0.0.1:1/none"), Connection()
    with app.test(connection=connection):
        assert Simulation(MemoryWorld(app, chance, connection), chance).run() == []


def test_on_a_server(stream: Stream) -> None:
    for seed in range(6):
        assert _on_server(stream, seed) == [], seed


def _on_server(stream: Stream, seed: int) -> list[str]:
    chance = random.Random(seed)
    for table in ("flow", "flow_step", "flow_end", "flow_signal", "flow_value", "outbox", "message"):
        stream.run(f"DELETE FROM ems_{table}")
    stream.run("DELETE FROM effect")
    app = Ems("model", url=stream.url)
    try:
        return Simulation(MysqlWorld(app, chance, stream), chance).run()
    finally:
        app.close()


class Planted:
    """The statements of the store, some of them with a fault."""

    def __init__(self, real: Any, faults: dict[str, Sql]) -> None:
        self._real, self._faults = real, faults

    def __getattr__(self, name: str) -> Any:
        return self._faults.get(name) or getattr(self._real, name)


_REAL = mysql_store._SQL
FAULTS: dict[str, Callable[[], dict[str, Sql]]] = {
    "a join is released before its last call": lambda: {
        "count_ends": _in("count_ends", "- IF(ROW_COUNT() < 0, NULL, ROW_COUNT())", "- pending")
    },
    "a join is released twice": lambda: {"insert_ends": _in("insert_ends", "INSERT IGNORE", "REPLACE")},
    "a join is forgotten": lambda: {"wake_joined": _in("wake_joined", "s.pending = 0", "s.pending = 1")},
    "a checkpoint is lost": lambda: {
        "add_step": _in("add_step", "AND state = 'running'", "AND state = 'running' AND 0")
    },
    "two runs go on at once": lambda: {
        "fence": _in("fence", "run = %(run)s AND state = 'running'", "run > 0"),
    },
    "a signal before its wait is lost": lambda: {"list_signals": _in("list_signals", "step IS NULL", "0")},
    "a signal during a run is lost": lambda: {"count_ready": _in("count_ready", "AND step IS NULL", "AND 0")},
    "a signal is taken twice": lambda: {"take_signal": _in("take_signal", "SET step = %(step)s", "SET step = NULL")},
    "the branch of a step is lost": lambda: {"list_steps": _in("list_steps", "branch,", "'' AS branch,")},
    "a cancel fences nothing": lambda: {
        "cancel": _in("cancel", "run = run + 1,", "run = run + 0,"),
        "fence": _in("fence", "AND state = 'running'", ""),
        "add_step": _in("add_step", "AND state = 'running'", ""),
    },
}


def _in(name: str, old: str, new: str) -> Sql:
    text = str(getattr(_REAL, name))
    assert old in text, f"{name} has changed: {text}"
    return Sql(text.replace(old, new))


@pytest.mark.slow
def test_each_planted_fault_is_found(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = []
    for name, plant in FAULTS.items():
        monkeypatch.setattr(mysql_store, "_SQL", Planted(_REAL, plant()))
        if not any(_is_found(stream, seed) for seed in range(60)):
            missed.append(name)
    assert not missed


def _is_found(stream: Stream, seed: int) -> bool:
    try:
        return bool(_on_server(stream, seed))
    except Exception:  # an error of a run, or of the server: found as well
        return True
