"""The checker finds each kind of fault that is planted in a history or a snapshot, and nothing in a sound one."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emsworker.chaos import (
    Deed,
    Fault,
    HandlerRun,
    History,
    Kind,
    Operation,
    Rules,
    Sent,
    ToldState,
    check,
    read_history,
)
from emsworker.chaos.history import Log, note_answer, note_fault, note_operation
from emsworker.store.inspect.snapshot import ClaimSnapshot, GroupRow, Snapshot

PLAIN, KEYED, SERIAL, CASH = 1, 2, 3, 4
NAMES = {PLAIN: "plain", KEYED: "keyed", SERIAL: "serial", CASH: "cash"}
ORDERS = {KEYED: "key", SERIAL: "partition"}
COUNT = 8
ONE, TWO = 100, 200  # processes
ONES, TWOS = f"ip-{ONE}-aa-{ONE}", f"ip-{TWO}-bb-{TWO}"


def run(n: int, group: int, began: float, pid: int = ONE, **more: object) -> HandlerRun:
    values = {"ended": began + 0.1, "outcome": "done", "key": f"k{n % 2}", "thread": pid, **more}
    return HandlerRun(f"u{n}", "t", 0, n, NAMES[group], pid, began, **values)  # type: ignore[arg-type]


class World:
    """Eight messages that four groups have run, one after the other; all is well."""

    def __init__(self) -> None:
        places = range(1, COUNT + 1)
        sent = {("t", f"u{n}"): Sent(f"u{n}", "t", f"k{n % 2}", n, n + 0.1, 0, n) for n in places}
        self.history = History(sent, [run(n, group, 10 + n) for group in NAMES for n in places])
        self.snapshot = Snapshot(
            topics={1: "t"},
            groups={group: GroupRow(1, name, ORDERS.get(group, "none"), 60.0) for group, name in NAMES.items()},
            messages={(1, 0): {n: (f"u{n}", "message") for n in places}},
            log_starts={(1, 0): 1},
            cursors={(group, 0): COUNT + 1 for group in NAMES},
            claims=[ClaimSnapshot(group, 0, 1, COUNT, COUNT, "done", "stream", ONES) for group in NAMES],
            clients={ONES: -5.0},
        )
        self.effects = Counter({f"u{n}": 1 for n in places})

    def kinds(self, **rules: object) -> set[Kind]:
        found = check(self.history, self.snapshot, Rules(effects={"cash": self.effects}, **rules))  # type: ignore[arg-type]
        return set(found.counts)

    def operation(
        self,
        deed: Deed,
        at: float,
        group: str | None = None,
        ranges: dict[int, tuple[int, int]] | None = None,
        **more: Any,
    ) -> None:
        self.history.operations.append(Operation(deed, "t", at, at + 0.1, group, ranges or {}, **more))

    def row(self, offset: int, uid: str | None, kind: str = "message") -> None:
        self.snapshot.messages[1, 0][offset] = (uid, kind)

    def without_run(self, n: int, group: int) -> None:
        self.history.runs = [one for one in self.history.runs if (one.offset, one.group) != (n, NAMES[group])]

    def claim(self, number: int, **changes: object) -> None:
        self.snapshot.claims[number] = self.snapshot.claims[number]._replace(**changes)  # type: ignore[arg-type]


def test_a_sound_history_has_no_finding() -> None:
    assert World().kinds(settled=True) == set()


def lost_ack_before_run(world: World) -> None:
    world.without_run(3, PLAIN)
    world.history.runs.append(run(3, PLAIN, 13, ended=None, outcome=None))


def lost_body(world: World) -> None:
    del world.snapshot.messages[1, 0][COUNT]
    world.snapshot.cursors = {(group, 0): COUNT for group in NAMES}


def lost_under_a_tombstone(world: World) -> None:
    world.row(3, None, "tombstone")


def lost_and_nowhere(world: World) -> None:
    world.history.sent["t", "u9"] = Sent("u9", "t", None, 9, 9.1)


def phantom_run(world: World) -> None:
    world.history.runs.append(replace(run(9, PLAIN, 30), uid="nobody's"))
    world.row(9, None, "tombstone")


def phantom_row(world: World) -> None:
    world.row(9, "nobody's")


def phantom_effect(world: World) -> None:
    world.effects["nobody's"] = 1


def stored_twice(world: World) -> None:
    world.row(9, "u8")


def run_again_without_a_fault(world: World) -> None:
    world.history.runs.append(run(3, PLAIN, 30))


def run_again_long_before_the_fault(world: World) -> None:
    world.history.runs.append(run(3, PLAIN, 30, TWO))
    world.history.faults.append(Fault("kill", 15.0, 15.0, ONE))


def key_overtaken(world: World) -> None:
    world.without_run(5, KEYED)
    world.history.runs.append(run(5, KEYED, 17.05, TWO))


def partition_overtaken_by_a_retry(world: World) -> None:
    world.without_run(3, SERIAL)
    world.history.runs += [run(3, SERIAL, 13, outcome="failed"), run(3, SERIAL, 25, attempt=2)]


def effect_twice(world: World) -> None:
    world.effects["u4"] = 2


def effect_missing(world: World) -> None:
    del world.effects["u4"]


def claims_overlap(world: World) -> None:
    world.snapshot.claims.append(ClaimSnapshot(PLAIN, 0, 5, 12, 8, "start", "stream", ONES))


def run_by_two_at_once(world: World) -> None:
    world.without_run(3, PLAIN)
    world.history.runs += [run(3, PLAIN, 13, ended=14.0), run(3, PLAIN, 13.5, TWO)]
    world.history.faults.append(Fault("kill", 60.0, 60.0, TWO))


def acknowledged_by_another(world: World) -> None:
    world.claim(0, client_id=TWOS)


def offset_given_twice(world: World) -> None:
    world.history.sent["t", "u9"] = Sent("u9", "t", None, 9, 9.1, 0, 8)


def hole_passed(world: World) -> None:
    world.row(10, None, "tombstone")
    world.snapshot.cursors[PLAIN, 0] = 11


def hole_left(world: World) -> None:
    world.row(10, None, "tombstone")


def client_left(world: World) -> None:
    world.snapshot.clients[TWOS] = 60.0


def cancelled_and_told(world: World) -> None:
    """All is well: cancelled before any client of one group had it, and its caller was told at once."""
    world.operation(Deed.CANCEL, 12.8, uids=frozenset({"u3"}))
    world.without_run(3, PLAIN)
    world.row(3, "u3", "cancelled")
    world.history.answers.append(ToldState("u3", "t", 13.0, "cancelled"))
    for group in (KEYED, SERIAL, CASH):
        world.without_run(3, group)
    del world.effects["u3"]


def run_though_cancelled(world: World) -> None:
    world.row(3, "u3", "cancelled")
    world.operation(Deed.CANCEL, 2, uids=frozenset({"u3"}))
    world.without_run(3, PLAIN)
    world.history.runs.append(run(3, PLAIN, 60))


def cancelled_by_nobody(world: World) -> None:
    world.without_run(3, PLAIN)
    world.row(3, "u3", "cancelled")
    world.operation(Deed.CANCEL, 20, uids=frozenset({"u4"}))


def begun_after_an_answer(world: World) -> None:
    """Told after the cancel, and run a little later, by a process that nobody has stopped."""
    cancelled_and_told(world)
    world.history.runs.append(run(3, PLAIN, 13.01))
    world.history.faults.append(Fault("server", 12.0, 14.0))


def begun_long_after_a_pause(world: World) -> None:
    cancelled_and_told(world)
    world.history.runs.append(run(3, PLAIN, 20))
    world.history.faults.append(Fault("pause", 12.0, 18.0, ONE))


def run_on_after_an_answer(world: World) -> None:
    cancelled_and_told(world)
    world.history.runs.append(run(3, PLAIN, 12.9, ended=14.0))


def done_after_an_answer(world: World) -> None:
    cancelled_and_told(world)
    world.history.answers.append(ToldState("u3", "t", 20.0, "done"))


def cancelled_and_pending(world: World) -> None:
    cancelled_and_told(world)
    world.history.answers = [ToldState("u3", "t", 13.0, "pending")]


def cancelled_and_in_retry(world: World) -> None:
    cancelled_and_told(world)
    world.snapshot.retries.add((PLAIN, 0, 3))


def left_in_a_lane(world: World) -> None:
    world.without_run(3, PLAIN)
    world.snapshot.retries.add((PLAIN, 0, 3))


def left_in_the_outbox(world: World) -> None:
    world.history.sent["t", "u9"] = Sent("u9", "t", None, 9, 9.1)
    world.snapshot.pending.add((1, "u9"))


def lost_after_a_reset(world: World) -> None:
    world.operation(Deed.RESET, 20, "plain", {0: (3, 8)})
    world.history.runs += [run(n, PLAIN, 20 + n) for n in range(3, COUNT)]


def lost_effect_after_a_reset(world: World) -> None:
    world.operation(Deed.RESET, 20, "cash", {0: (3, 8)})
    world.history.runs += [run(n, CASH, 20 + n) for n in range(3, COUNT)]
    world.effects.update({f"u{n}": 1 for n in range(3, COUNT)})


def lost_after_a_replay(world: World) -> None:
    world.operation(Deed.REPLAY, 40, "plain", {0: (3, 4)})
    world.history.runs.append(run(3, PLAIN, 41))


def run_again_before_the_reset(world: World) -> None:
    world.history.runs.append(run(3, PLAIN, 19))
    after_a_reset(world)


def run_three_times_after_a_reset(world: World) -> None:
    after_a_reset(world)
    world.history.runs.append(run(3, PLAIN, 50))


def effect_three_times_after_a_reset(world: World) -> None:
    after_a_reset(world)
    world.effects["u4"] = 3


def before_the_reset(world: World) -> None:
    world.history.runs.append(run(2, PLAIN, 50))
    after_a_reset(world)


def order_after_a_reset(world: World) -> None:
    world.operation(Deed.RESET, 20, "serial", {0: (3, 8)})
    world.history.runs += [run(n, SERIAL, 40 - n) for n in range(3, COUNT + 1)]


def lost_after_the_topic_was_there_again(world: World) -> None:
    world.operation(Deed.DELETE_TOPIC, 0)
    lost_ack_before_run(world)


def lost_after_a_group_was_added(world: World) -> None:
    world.operation(Deed.ADD_GROUP, 0, "plain", {0: (1, 2)})
    lost_ack_before_run(world)


def claimed_twice_beside_a_reset(world: World) -> None:
    after_a_reset(world)
    claims_overlap(world)
    world.snapshot.claims.append(ClaimSnapshot(KEYED, 0, 5, 6, 6, "done", "stream", ONES))


PLANTED: list[tuple[Callable[[World], None], Kind]] = [
    (lost_ack_before_run, Kind.LOST),
    (lost_body, Kind.LOST),
    (lost_under_a_tombstone, Kind.LOST),
    (lost_and_nowhere, Kind.LOST),
    (phantom_run, Kind.PHANTOM),
    (phantom_row, Kind.PHANTOM),
    (phantom_effect, Kind.PHANTOM),
    (stored_twice, Kind.DUPLICATE),
    (run_again_without_a_fault, Kind.DUPLICATE),
    (run_again_long_before_the_fault, Kind.DUPLICATE),
    (key_overtaken, Kind.ORDER),
    (partition_overtaken_by_a_retry, Kind.ORDER),
    (effect_twice, Kind.EFFECT),
    (effect_missing, Kind.EFFECT),
    (claims_overlap, Kind.CLAIMED_TWICE),
    (run_by_two_at_once, Kind.CLAIMED_TWICE),
    (acknowledged_by_another, Kind.NOT_THE_OWNER),
    (offset_given_twice, Kind.OFFSET_REUSED),
    (hole_passed, Kind.HOLE),
    (hole_left, Kind.HOLE),
    (client_left, Kind.CLIENT_LEFT),
    (run_though_cancelled, Kind.CANCELLED),
    (cancelled_by_nobody, Kind.LOST),
    (begun_after_an_answer, Kind.CANCELLED),
    (begun_long_after_a_pause, Kind.CANCELLED),
    (run_on_after_an_answer, Kind.CANCELLED),
    (done_after_an_answer, Kind.CANCELLED),
    (cancelled_and_pending, Kind.STUCK),
    (cancelled_and_in_retry, Kind.STUCK),
    (left_in_a_lane, Kind.STUCK),
    (left_in_the_outbox, Kind.STUCK),
    (lost_after_a_reset, Kind.LOST),
    (lost_effect_after_a_reset, Kind.LOST),
    (lost_after_a_replay, Kind.LOST),
    (run_again_before_the_reset, Kind.DUPLICATE),
    (run_three_times_after_a_reset, Kind.DUPLICATE),
    (effect_three_times_after_a_reset, Kind.EFFECT),
    (before_the_reset, Kind.DUPLICATE),
    (order_after_a_reset, Kind.ORDER),
    (lost_after_the_topic_was_there_again, Kind.LOST),
    (lost_after_a_group_was_added, Kind.LOST),
    (claimed_twice_beside_a_reset, Kind.CLAIMED_TWICE),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_each_planted_fault_is_found(plant: Callable[[World], None], kind: Kind) -> None:
    world = World()
    plant(world)
    assert kind in world.kinds(settled=True)
    also = {lost_under_a_tombstone: {Kind.LOST}, stored_twice: {Kind.DUPLICATE}}.get(plant)
    assert also is None or world.kinds(settled=True) == also


def test_every_kind_is_planted() -> None:
    assert {kind for _, kind in PLANTED} == set(Kind)


def test_what_waits_is_dead_or_was_left_out_is_not_lost() -> None:
    for place in ("retries", "dead", "given_up"):
        world = World()
        lost_ack_before_run(world)
        getattr(world.snapshot, place).add((PLAIN, 0, 3))
        assert Kind.LOST not in world.kinds()
    world = World()
    lost_ack_before_run(world)
    world.snapshot.skips.append((PLAIN, 0, 2, 4))
    assert Kind.LOST not in world.kinds()
    world = World()
    lost_ack_before_run(world)
    world.claim(0, acked_to=2, state="waiting")
    assert world.kinds() == set()


def test_what_was_set_aside_may_be_run_by_anybody() -> None:
    world = World()
    acknowledged_by_another(world)
    world.snapshot.attempted |= {(PLAIN, 0, n) for n in range(1, COUNT)}
    world.snapshot.retries.add((PLAIN, 0, COUNT))
    assert world.kinds(settled=True) == set()


def test_what_was_delayed_at_the_moment_of_the_snapshot_is_not_lost() -> None:
    world = World()
    world.history.sent["t", "u9"] = Sent("u9", "t", None, 9, 9.1)
    world.history.runs.append(run(9, PLAIN, 30))
    assert world.kinds() == {Kind.LOST}
    world.snapshot.pending.add((1, "u9"))
    assert world.kinds() == set()


def test_what_a_fault_explains_is_no_finding() -> None:
    world = World()
    world.history.runs.append(run(3, PLAIN, 30, TWO))
    world.history.faults.append(Fault("kill", 13.3, 13.3, ONE))
    report = check(world.history, world.snapshot, Rules())
    assert (list(report.findings), report.repeated) == ([], 1)
    world.history.runs.append(run(8, KEYED, 30, TWO))  # the last of its thread may be repeated however old it is
    assert check(world.history, world.snapshot, Rules()).repeated == 2


def test_a_paused_owner_may_run_on_but_an_effect_of_its_would_be_found() -> None:
    world = World()
    world.without_run(3, CASH)
    world.history.runs += [run(3, CASH, 13, ended=33.0), run(3, CASH, 20, TWO)]
    world.history.faults.append(Fault("pause", 13.05, 33.0, ONE))
    assert world.kinds() == set()
    world.effects["u3"] = 2
    assert world.kinds() == {Kind.EFFECT}


def after_a_reset(world: World) -> None:
    """Two groups were told to run all from 3 on again, and have done so."""
    for group in (PLAIN, SERIAL, CASH):
        world.operation(Deed.RESET, 20, NAMES[group], {0: (3, 8)})
        world.history.runs += [run(n, group, 30 + n, TWO) for n in range(3, COUNT + 1)]
        world.snapshot.claims.append(ClaimSnapshot(group, 0, 3, COUNT, COUNT, "done", "stream", TWOS))
    world.effects.update({f"u{n}": 1 for n in range(3, COUNT + 1)})


def test_what_operators_did_explains_just_that() -> None:
    world = World()
    after_a_reset(world)
    assert world.kinds(settled=True) == set()
    world.operation(Deed.REPLAY, 50, "cash", {0: (4, 5)})
    assert world.kinds() == {Kind.LOST}, "these have to be run again"
    world.history.runs += [run(n, CASH, 50 + n) for n in (4, 5)]
    world.effects.update({"u4": 1, "u5": 1})
    assert world.kinds(settled=True) == set()
    world = World()
    world.operation(Deed.CANCEL, 12, uids=frozenset({"u3"}))
    world.without_run(3, PLAIN)
    world.row(3, "u3", "cancelled")
    assert world.kinds(settled=True) == set()


def test_what_was_answered_is_final_but_for_a_process_that_was_stopped() -> None:
    world = World()
    cancelled_and_told(world)
    assert world.kinds(settled=True) == set()
    world.history.runs.append(run(3, PLAIN, 18.1))
    world.history.faults.append(Fault("pause", 12.0, 18.0, ONE))
    assert world.kinds(settled=True) == set()


def test_a_run_that_had_ended_while_it_was_cancelled_keeps_its_result() -> None:
    world = World()
    cancelled_and_told(world)
    world.history.answers.append(ToldState("u3", "t", 20.0, "done"))
    assert world.kinds(settled=True) == {Kind.CANCELLED}
    world.history.runs.append(run(3, PLAIN, 12.85, ended=12.95))
    assert world.kinds(settled=True) == set()


def test_a_dead_letter_that_was_requeued_is_alive() -> None:
    world = World()
    world.without_run(3, KEYED)
    world.history.runs += [run(3, KEYED, 13, outcome="failed"), run(3, KEYED, 40, outcome="done")]
    assert world.kinds() == {Kind.ORDER}, "the next of the key did not wait"
    world.operation(Deed.REQUEUE, 30, "keyed", uids=frozenset({"u3"}))
    assert world.kinds(settled=True) == set()
    world.without_run(3, KEYED)
    world.history.runs.append(run(3, KEYED, 13, outcome="failed"))
    assert world.kinds() == {Kind.LOST}


def test_a_message_that_fails_and_is_cancelled_holds_its_key_until_then() -> None:
    world = World()
    world.without_run(3, KEYED)
    world.history.runs.append(run(3, KEYED, 13, outcome="failed"))
    world.row(3, "u3", "cancelled")
    world.operation(Deed.PURGE, 13.05)
    assert world.kinds(settled=True) == set()
    world.history.operations.clear()
    world.operation(Deed.PURGE, 15.05)
    assert world.kinds(settled=True) == {Kind.ORDER}, "the next of the key, at 15, did not wait"


def test_a_message_that_fails_and_is_skipped_holds_its_key_no_longer() -> None:
    world = World()
    world.without_run(3, KEYED)
    world.history.runs.append(run(3, KEYED, 13, outcome="failed"))
    world.snapshot.skips.append((KEYED, 0, 2, 3))
    assert world.kinds(settled=True) == set()


def test_what_went_with_a_topic_or_lies_before_a_group_is_not_lost() -> None:
    world = World()
    lost_ack_before_run(world)
    world.operation(Deed.DELETE_TOPIC, 3)
    assert world.kinds(settled=True) == set()
    world = World()
    lost_ack_before_run(world)
    world.operation(Deed.ADD_GROUP, 9, "plain", {0: (1, 4)})
    assert world.kinds(settled=True) == set()


def test_a_run_that_outlasted_its_timeout_may_come_again_but_has_one_effect() -> None:
    world = World()
    world.without_run(3, CASH)
    world.history.runs += [run(3, CASH, 13, ended=75.0), run(3, CASH, 74, TWO)]
    assert world.kinds(settled=True) == set()
    world.effects["u3"] = 2
    assert world.kinds(settled=True) == {Kind.EFFECT}


def test_an_unconfirmed_send_may_be_there_or_not() -> None:
    world = World()
    world.history.sent["t", "u9"] = Sent("u9", "t", None, 9)
    assert world.kinds() == set()
    world.row(9, "u9")
    assert world.kinds() == set()


def test_what_lies_below_the_log_start_need_not_be_there() -> None:
    world = World()
    world.snapshot.log_starts[1, 0] = 5
    for offset in range(1, 5):
        del world.snapshot.messages[1, 0][offset]
    assert world.kinds(settled=True) == set()


def test_a_history_is_read_back_even_if_its_last_line_was_cut_off(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.note("send", uid="u1", topic="t", key=None)
    log.note("sent", uid="u1", as_uid="u1", topic="t", partition=0, offset=1)
    begun = {"uid": "u1", "topic": "t", "place": [0, 1], "key": None, "group": "g", "attempt": 1, "process": [7, 8]}
    log.note("begin", run="r1", **begun)
    log.note("end", run="r1", outcome="done")
    log.note("begin", run="r2", **begun)
    note_fault(log, Fault("kill", 1.0, 2.0, 7))
    operation = Operation(Deed.RESET, "t", 1.0, 2.0, "g", {0: (1, 2), 3: (4, 5)}, frozenset({"u1"}))
    note_operation(log, operation)
    answer = ToldState("u1", "t", 2.5, "cancelled")
    note_answer(log, answer)
    (path,) = tmp_path.glob("*.jsonl")
    with path.open("a") as file:
        file.write('{"event":"end","at"')
    history = read_history(tmp_path)
    assert history.sent["t", "u1"].offset == 1
    assert [(one.pid, one.outcome) for one in history.runs] == [(7, "done"), (7, None)]
    assert history.faults == [Fault("kill", 1.0, 2.0, 7)]
    assert history.operations == [operation]
    assert history.answers == [answer]
    with path.open("a") as file:
        file.write("\n")
    with pytest.raises(ValueError, match=r":9 is no line of a history"):
        read_history(tmp_path)
    with pytest.raises(FileNotFoundError, match="the one that Recorder was given"):
        read_history(tmp_path / "none")
