"""What real workers do on a real server, killed again and again, are steps that the model allows."""

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emsworker.admin import Admin
from emsworker.core.codec import encode_json
from emsworker.core.ids import new_uid
from emsworker.core.model import NewMessage, Topic
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from emsworker.store.stream import messages
from tests.process.record import whole_lines
from tests.process.stream import Stream, open_stream
from tests.support.waiting import until
from tests.support.worker import Program, kill
from verification.model import trace
from verification.model.follower import Follower, Refused
from verification.model.state import Order
from verification.model.trace import Change, Transaction

_LONG = bool(os.environ.get("EMS_TEST_LONG"))
_KILLS = 40 if _LONG else 4
_MESSAGES = 3000 if _LONG else 240
_ATTEMPTS = 3
_GROUPS = {"free": Order.NONE, "serial": Order.PARTITION}
_SETTINGS = {"test_failing": 0.15, "test_work_s": 0.01, "max_attempts": _ATTEMPTS, "ladder": "100ms"}
Recorded = dict[str, list[Transaction]]


@pytest.fixture(scope="module")
def recorded(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Recorded, Path]]:
    """A stream with holes in it, two groups, and workers whose processes are killed."""
    folder = tmp_path_factory.mktemp("trace")
    with open_stream(server, folder) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(trace.SITE))
        Admin(stream.app).create_topic("flights", partitions=1)
        for statement in trace.statements():
            stream.run(statement)
        workers = [_worker(stream), _worker(stream)]
        _harass(stream)
        assert workers[0].stop() == 0, "in the middle of its work: it gives back"
        stream.wait_settled(120)
        assert workers[1].stop() == 0
        rows = stream.rows("SELECT id, tx, what, tab, was, now FROM trace_log ORDER BY id")
        groups = {name: stream.one("SELECT id FROM ems_group WHERE name = %s", name) for name in _GROUPS}

        yield {name: trace.read(rows, group_id) for name, group_id in groups.items()}, folder


def _worker(stream: Stream) -> Program:
    return stream.worker("tests.process.apps.ordered:app", _SETTINGS, threads=2, groups=list(_GROUPS))


def _harass(stream: Stream) -> None:
    """Send in pieces, leave holes as producers do that die, and kill the owners of claims."""
    chance = random.Random(4)
    topic = Admin(stream.app).topic("flights")

    def send_and_kill(group_id: int) -> None:
        for _ in range(6):
            stream.app.send_many("flights", range(_MESSAGES // _KILLS // 6))
            _send_behind_a_hole(stream, topic, chance.choice((0, 1, 3)))
        owner = until(lambda: _owner(stream, group_id), 60, "somebody works on a claim")
        kill(owner, signal.SIGKILL)
        killed.append(owner)

    killed: list[int] = []
    for number in range(_KILLS):
        send_and_kill(number % 2 + 1)
    for group_id in (1, 2):  # on a busy machine each owner may have ended its claim between the look and the kill
        while not _left_behind(stream, group_id, killed):
            send_and_kill(group_id)
    stream.app.send("flights", "the last, behind every hole")


def _send_behind_a_hole(stream: Stream, topic: Topic, gap: int) -> None:
    message = NewMessage(new_uid(), None, None, b"", encode_json("behind a hole"))
    end = stream.one("SELECT MAX(`offset`) + 1 FROM ems_message WHERE `offset` > 0")
    with Database(stream.url).session() as session:
        messages.publish(session, [messages.PartitionBatch(topic.id, 0, [message], messages.Placement(end + gap))])


def _owner(stream: Stream, group_id: int) -> int:
    """The process of a client that has some way to go in its claim, so that it does not end before the kill."""
    found = stream.rows(
        "SELECT client_id FROM ems_claim WHERE state = 'start' AND group_id = %s AND hi > acked_to + 4 LIMIT 1",
        group_id,
    )
    return _pid(found[0][0]) if found else 0


def _pid(client_id: str) -> int:
    return int(client_id.split("-")[1])


def _left_behind(stream: Stream, group_id: int, killed: list[int]) -> int:
    """How many recoveries have left something of a group to another owner, once none of the killed has a claim."""

    def owned() -> bool:
        claims = stream.rows("SELECT client_id FROM ems_claim WHERE state = 'start'")
        return any(_pid(client_id) in killed for (client_id,) in claims)

    until(lambda: not owned(), 60, "all claims of the killed are recovered")
    changes = stream.rows("SELECT now FROM trace_log WHERE what = 'recover' AND tab = 'ems_claim' AND now IS NOT NULL")
    rows = [trace.image("ems_claim", now) for (now,) in changes]
    return sum(row["group_id"] == group_id and row["state"] == "waiting" for row in rows)


@pytest.mark.parametrize("group", _GROUPS)
def test_what_happened_is_what_the_model_allows(recorded: tuple[Recorded, Path], group: str) -> None:
    transactions, folder = recorded[0][group], recorded[1]
    follower = Follower(transactions, _GROUPS[group], _ATTEMPTS)
    state = follower.follow()
    steps = Counter(label[0] for label in follower.steps)
    print(f"{group}: {len(transactions)} transactions, {dict(steps)}")
    assert not state.claims and not state.retries
    assert min(steps[one] for one in ("take_range", "adopt", "take_retries", "recover", "flush")) > 0
    assert steps["close_hole"] + steps["closed_by_others"] > 0
    lines = [line.split(",") for path in folder.glob("runs-*.csv") for line in whole_lines(path)]
    ran = Counter(int(line[3]) for line in lines if line[0] == group)
    assert {o for o in range(1, len(state.rows) + 1) if state.ran >> o & 1} <= ran.keys(), "it did run"
    assert sum(ran.values()) >= steps["end"]


# -- planted faults ----------------------------------------------------------------------------------------------------

Planted = Callable[[list[Transaction]], list[Transaction]]


def _at(transactions: list[Transaction], wanted: Callable[[Change], bool]) -> tuple[int, Change]:
    """The first transaction with such a change, and the change."""
    return next((n, change) for n, one in enumerate(transactions) for change in one.changes if wanted(change))


def _is_progress(change: Change) -> bool:
    was, now = change.was, change.now
    return change.table == "ems_claim" and bool(was and now and was["state"] == now["state"] == "start")


def _recovered(transactions: list[Transaction]) -> int:
    """The first recovery that leaves something to another owner."""
    return next(n for n, one in enumerate(transactions) if one.what == "recover" and any(map(_waits, one.changes)))


def _waits(change: Change) -> bool:
    return change.table == "ems_claim" and change.now is not None and change.now["state"] == "waiting"


def _edited(transactions: list[Transaction], number: int, old: Change, **values: Any) -> list[Transaction]:
    assert old.now is not None
    new = replace(old, now={**old.now, **values})
    changes = tuple(new if change is old else change for change in transactions[number].changes)
    return [*transactions[:number], replace(transactions[number], changes=changes), *transactions[number + 1 :]]


def zombie(transactions: list[Transaction]) -> list[Transaction]:
    """After its claim was recovered a client moves its acked offset."""
    number = _recovered(transactions)
    lost = next(c.was for c in transactions[number].of("ems_claim") if c.was)
    late = Change("ems_claim", lost, {**lost, "acked_to": lost["hi"], "state": "done"})
    return [*transactions[: number + 1], Transaction("", (late,)), *transactions[number + 1 :]]


def hole_passed(transactions: list[Transaction]) -> list[Transaction]:
    """A cursor goes over offsets that were not closed."""
    return [one for one in transactions if not any(c.row.get("kind") == "tombstone" for c in one.changes)]


def failure_lost(transactions: list[Transaction]) -> list[Transaction]:
    """A acked offset passes a message that failed and has no retry."""
    number, _ = _at(transactions, lambda c: c.table == "ems_retry" and c.was is None)
    kept = tuple(change for change in transactions[number].changes if change.table != "ems_retry")
    return [*transactions[:number], replace(transactions[number], changes=kept), *transactions[number + 1 :]]


def claimed_twice(transactions: list[Transaction]) -> list[Transaction]:
    """A range is claimed that somebody has."""
    number, claim = _at(
        transactions, lambda c: c.table == "ems_claim" and c.was is None and c.row["source"] == "stream"
    )
    again = replace(claim, now={**claim.row, "claim_id": 1})
    return [*transactions[: number + 1], Transaction("", (again,)), *transactions[number + 1 :]]


def rest_forgotten(transactions: list[Transaction]) -> list[Transaction]:
    """A recovery leaves no waiting claim."""
    number = _recovered(transactions)
    kept = tuple(c for c in transactions[number].changes if not _waits(c))
    return [*transactions[:number], replace(transactions[number], changes=kept), *transactions[number + 1 :]]


def cursor_short(transactions: list[Transaction]) -> list[Transaction]:
    """A cursor is moved less far than its claim goes."""
    number, cursor = _at(transactions, lambda c: c.table == "ems_cursor" and c.was is not None)
    return _edited(transactions, number, cursor, next_offset=cursor.row["next_offset"] - 1)


def acked_to_back(transactions: list[Transaction]) -> list[Transaction]:
    """Progress is written down that is not the owner's own."""
    number, progress = _at(transactions, _is_progress)
    other = next(n for n in _names(transactions) if n != progress.row["client_id"])
    assert progress.was is not None
    changed = replace(progress, was={**progress.was, "client_id": other})
    changes = tuple(changed if change is progress else change for change in transactions[number].changes)
    return [*transactions[:number], replace(transactions[number], changes=changes), *transactions[number + 1 :]]


def _names(transactions: list[Transaction]) -> list[str]:
    claims = [change.row for one in transactions for change in one.of("ems_claim")]
    return sorted({row["client_id"] for row in claims if row["client_id"]})


_PLANTED = (zombie, hole_passed, failure_lost, claimed_twice, rest_forgotten, cursor_short, acked_to_back)


@pytest.mark.parametrize("planted", _PLANTED)
def test_a_planted_fault_is_refused(recorded: tuple[Recorded, Path], planted: Planted) -> None:
    transactions = planted(recorded[0]["free"])
    with pytest.raises(Refused) as refused:
        Follower(transactions, Order.NONE, _ATTEMPTS).follow()
    print(f"{planted.__name__}: {refused.value}"[:300])
