"""Operators change topics and groups while messages are sent and run; each operation is written into the history."""

import contextlib
import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from emsworker import Ems
from emsworker.admin import DeadRef, Selection
from emsworker.chaos import Deed, Operation, note_operation
from emsworker.core.errors import AlreadyExists
from emsworker.core.ids import uid_text
from emsworker.store.groups.cancel import StateAtCancel
from tests.support.waiting import until
from verification.chaos.arena import Arena
from verification.chaos.names import KEYS, OPERATED, REBORN, VERSIONED
from verification.chaos.side import admin_of, load, now, prepare, sender, wait_done, worker_of

_PASSING = ("o-plain", "o-keyed", "o-cash")
_DIES_EACH = 10


def _note(arena: Arena, deed: Deed, topic: str, began: float, **more: Any) -> None:
    note_operation(arena.log, Operation(deed, topic, began, now(), **more))


def reset(arena: Arena) -> None:
    """Have a group run its last messages again, or leave some out if it is behind."""
    group, began = arena.chance.choice(_PASSING), now()
    moves = admin_of(arena).reset_group(OPERATED, group, f"-{arena.chance.randint(5, 25)}")
    ranges = {move.partition: (move.to, move.cursor - 1) for move in moves if move.again}
    _note(arena, Deed.RESET, OPERATED, began, group=group, ranges=ranges)


def replay(arena: Arena) -> None:
    """Have a group run some messages again: all of a range, or those of two keys one by one."""
    group, began = arena.chance.choice(_PASSING), now()
    keys = arena.chance.choice([(), ("a", "b")])
    selection = Selection(start=f"-{arena.chance.randint(5, 25)}", keys=keys)
    done = admin_of(arena).replay(OPERATED, group, selection).run()
    ranges = [{one.offsets.partition: (one.offsets.start, one.offsets.end - 1)} for one in done if one.again]
    if keys:
        ranges = [{partition: (offset, offset)} for one in ranges for partition, offset in _of_keys(arena, one, keys)]
    for one in ranges:
        _note(arena, Deed.REPLAY, OPERATED, began, group=group, ranges=one)


def _of_keys(arena: Arena, ranges: Mapping[int, tuple[int, int]], keys: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    for partition, (lo, hi) in ranges.items():
        yield from arena.looker.rows(
            "SELECT m.`partition`, m.`offset` FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = %s "
            "AND m.`partition` = %s AND m.`offset` BETWEEN %s AND %s AND m.`key` IN %s",
            OPERATED,
            partition,
            lo,
            hi,
            keys,
        )


def requeue(arena: Arena) -> None:
    """Bring the dead letters of all groups back to life, whose cause is gone."""
    (arena.folder / "healed").touch()
    admin = admin_of(arena)
    for _, group in admin.groups(OPERATED):
        rows = list(admin.dead.iterate(OPERATED, group.name))
        uids, began = frozenset(uid_text(row.uid) for row in rows), now()
        admin.dead.requeue([DeadRef(group, row.place) for row in rows])
        if rows:
            _note(arena, Deed.REQUEUE, OPERATED, began, group=group.name, uids=uids)


def _drop_cancelled(arena: Arena) -> None:
    """A dead letter whose message was cancelled since cannot be run again: delete those, and see that these are all."""
    left = arena.looker.rows(
        "SELECT DISTINCT m.kind, d.reason FROM ems_dead d JOIN ems_group g ON g.id = d.group_id LEFT JOIN ems_message m "
        "ON m.topic_id = g.topic_id AND m.`partition` = d.`partition` AND m.`offset` = d.`offset`"
    )
    assert all(kind == "cancelled" for kind, _ in left), left
    admin_of(arena).dead.delete_all(OPERATED)


def cancel(arena: Arena, count: int = 10) -> None:
    """Cancel some messages that are delayed, and some that may be waiting, running or done."""
    admin = admin_of(arena)
    with sender(arena) as app:
        for n in range(count):
            countdown = 0.5 if n % 2 else None
            receipt = app.send(OPERATED, {"work_s": 0}, key=arena.chance.choice(KEYS), countdown=countdown)
            began = now()
            if admin.cancel(OPERATED, receipt.id) is not StateAtCancel.FINISHED:
                _note(arena, Deed.CANCEL, OPERATED, began, uids=frozenset({receipt.id}))


def purge(arena: Arena) -> None:
    """Cancel whatever some group of the topic has not finished; one of them is slow, and always behind."""
    began = now()
    admin_of(arena).purge_topic(OPERATED)
    _note(arena, Deed.PURGE, OPERATED, began)


def add_group(arena: Arena) -> None:
    """Add a group that begins with the next message; workers that are started from now on know it."""
    began = now()
    group = admin_of(arena).create_group(OPERATED, "o-added", from_start=False)
    rows = arena.looker.rows("SELECT `partition`, next_offset FROM ems_cursor WHERE group_id = %s", group.id)
    before = {partition: (1, offset - 1) for partition, offset in rows}
    _note(arena, Deed.ADD_GROUP, OPERATED, began, group="o-added", ranges=before)
    (arena.folder / "added").touch()


def _operate(arena: Arena, deeds: Sequence[Callable[[Arena], None]], confirmed: Callable[[], int]) -> None:
    add_group(arena)
    for deed in deeds:
        target = confirmed() + 8
        deed(arena)
        (arena.folder / "healed").unlink(missing_ok=True)
        until(lambda target=target: confirmed() >= target, 60, f"they go on:\n{arena.tail()}", 0.05)  # type: ignore[misc]


def operate(arena: Arena, times: int = 3) -> str:
    """All of these by a random schedule, under load."""
    prepare(arena, OPERATED, {})
    deeds: list[Callable[[Arena], None]] = [reset, replay, requeue, cancel, purge] * times
    arena.chance.shuffle(deeds)
    chance = random.Random(arena.chance.random())

    def send(app: Ems, n: int) -> None:
        body = {"work_s": chance.choice((0, 0, 0.01)), "dies": n % _DIES_EACH == 0}
        app.send(OPERATED, body, key=chance.choice(KEYS), countdown=0.2 if n % 7 == 0 else None)

    with worker_of(arena, OPERATED):
        with load(arena, send) as confirmed:
            until(lambda: confirmed() >= 30, 60, f"messages are sent; logs:\n{arena.tail()}", 0.05)
            _operate(arena, deeds, confirmed)
        (arena.folder / "healed").touch()
        # A worker that knows of the new group is there until all is done; then nothing is dead any more.
        with worker_of(arena, OPERATED):
            wait_done(arena, OPERATED)
            requeue(arena)
            wait_done(arena, OPERATED)
    _drop_cancelled(arena)
    arena.goes_on()
    return f"{len(deeds) + 1} operations"


def _stop(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    assert process.wait(60) == 0


def create_again(arena: Arena, times: int = 3) -> str:
    """Delete a topic and create it again, while direct and delayed messages are sent to it."""
    prepare(arena, REBORN, {})

    def send(app: Ems, n: int) -> None:
        app.send(REBORN, {"n": n}, countdown=(None, 0.05, 0.3)[n % 3])

    delayer = arena.spawn_producer("verification.chaos.delayer")
    arena.producers.remove(delayer)
    with contextlib.ExitStack() as stack:
        confirmed = stack.enter_context(load(arena, send))
        stack.callback(_stop, delayer)
        for _ in range(times):
            target = confirmed() + 10
            with worker_of(arena, REBORN):
                until(lambda target=target: confirmed() >= target, 60, f"messages are sent:\n{arena.tail()}", 0.02)  # type: ignore[misc]
            admin, began = admin_of(arena), now()
            admin.delete_topic(REBORN, force=True)
            with contextlib.suppress(AlreadyExists):  # whoever sends may have created it first
                admin.create_topic(REBORN, partitions=2)
            _note(arena, Deed.DELETE_TOPIC, REBORN, began)
        target = (
            confirmed() + 60
        )  # by now everybody has learned of it, and those of the first second must be there, too
        until(lambda: confirmed() >= target, 60, f"messages are sent; logs:\n{arena.tail()}", 0.02)
    with worker_of(arena, REBORN):
        wait_done(arena, REBORN)
    arena.goes_on()
    return f"{times} times"


def run_two_versions(arena: Arena, count: int = 200) -> None:
    """Workers of two versions of an app: one has a group and a task that the other lacks, and each its own ladder."""
    prepare(arena, VERSIONED, {"v-tasks": {"ladder": "100ms", "max_attempts": 100}})
    with worker_of(arena, VERSIONED), worker_of(arena, VERSIONED, EMS_TEST_VERSION="2"), sender(arena) as app:
        for n in range(count):
            name, arguments = ("old", [n]) if n % 4 == 0 else ("both", [n, n % 4 == 1])
            app.publisher.send(VERSIONED, [arguments, {}], headers={"ems-task": f"versioned.{name}"})
        wait_done(arena, VERSIONED)
    arena.goes_on()
