"""The checker over a history that never ends: it finds what it must, and forgets what is settled, but nothing else."""

import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.chaos import CheckWindow, Fault, Kind, Recorder, Rules, Violation, read_history
from emsworker.chaos.history import Log, Sent, note_fault
from emsworker.store.engine.database import Database
from emsworker.store.topics import create_group, create_topic
from tests.support.looker import Looker
from tests.support.tables import migrate

TOPIC, GROUP, ROLL_BYTES = "t", "g", 400


class Counted:
    """Effects that nobody has, and of which messages they were forgotten."""

    def __init__(self) -> None:
        self.forgotten: set[str] = set()

    def read(self) -> dict[str, dict[str, int]]:
        return {}

    def forget(self, uids: Collection[str]) -> None:
        self.forgotten |= set(uids)


class Stream:
    """A topic with a group, whose work is done on paper: in the history and in the tables."""

    def __init__(self, url: str, folder: Path) -> None:
        self.folder, self.looker, self.database = folder, Looker(url), Database(url)
        with self.database.session() as session:
            migrate(session)
            topic = create_topic(session, TOPIC)
            create_group(session, topic, GROUP, timeout_s=60, ladder="1s", max_attempts=3)
        self.app = Ems("sender", url=url, middleware=[Recorder(folder, sync=False, roll_bytes=ROLL_BYTES)])
        self.log = Log(folder, sync=False, roll_bytes=ROLL_BYTES)
        self.uids: list[str] = []
        self.effects, self.begun = Counted(), list[tuple[str, str]]()
        self.window = CheckWindow(
            self.database,
            folder,
            Rules(bound_s=0.0),
            linger_s=0.0,
            effects=self.effects,
            on_begin=self._note,
            prune=True,
        )

    def _note(self, sent: Sent, group: str, at: float) -> None:
        self.begun.append((sent.uid, group))

    def send(self, count: int) -> None:
        self.uids += [receipt.id for receipt in self.app.send_many(TOPIC, range(count))]

    def run(self, offset: int, pid: int = 0) -> None:
        place = {"topic": TOPIC, "place": [0, offset], "key": None, "group": GROUP, "attempt": 1}
        number = f"{offset} {time.monotonic()}"
        self.log.note("begin", run=number, uid=self.uids[offset - 1], process=[pid or os.getpid(), 1], **place)
        self.log.note("end", run=number, outcome="done")

    def pass_to(self, offset: int) -> None:
        self.looker.rows("UPDATE ems_cursor SET next_offset = %s", offset)

    def trim_to(self, offset: int) -> None:
        self.looker.rows("UPDATE ems_partition SET log_start = %s", offset)
        self.looker.rows("DELETE FROM ems_message WHERE `offset` < %s", offset - 1)  # the last of them is yet to go

    def look(self) -> list[Violation]:
        return list(self.window.look().findings)

    def close(self) -> None:
        self.app.close()
        self.looker.close()


@pytest.fixture
def stream(database: str, tmp_path: Path) -> Iterator[Stream]:
    stream = Stream(database, tmp_path / "history")
    yield stream
    stream.close()


def _done(stream: Stream, count: int) -> None:
    stream.send(count)
    for offset in range(1, count + 1):
        stream.run(offset)
    stream.pass_to(count + 1)


def test_what_is_settled_is_forgotten_and_its_files_are_deleted(stream: Stream) -> None:
    _done(stream, 20)
    files = set(stream.folder.iterdir())
    assert len(files) > 4, "they were rolled"
    assert len(read_history(stream.folder).runs) == 20
    assert stream.look() == []
    assert len(stream.window) == 40, "all is there, and may be asked for"
    assert [uid for uid, _ in stream.begun] == stream.uids
    stream.trim_to(11)
    report = stream.window.look()
    assert not report.findings
    assert (report.asked, report.confirmed, report.runs, report.repeated) == (20, 20, 20, 0)
    assert len(stream.window) == 20, "above the log start offset it is still there"
    assert stream.effects.forgotten == set(stream.uids[:10])
    assert len(set(stream.folder.iterdir())) == 2, "one of each recorder goes on"


def test_what_is_run_after_it_was_forgotten_is_found(stream: Stream) -> None:
    _done(stream, 4)
    stream.trim_to(4)
    stream.look()
    stream.run(2)
    assert stream.look() == [], "one look is not sure"
    (found,) = stream.look()
    assert (found.kind, found.where, found.group) == (Kind.DUPLICATE, "t/0/2", GROUP)
    assert stream.look() == [], "it is told once"


def test_a_loss_is_found_and_nothing_is_forgotten_before_that_is_sure(stream: Stream) -> None:
    stream.send(4)
    for offset in (1, 2, 4):
        stream.run(offset)
    stream.pass_to(5)
    stream.trim_to(3)
    assert stream.look() == []
    assert len(stream.window) == 7
    (found,) = stream.look()
    assert (found.kind, found.where) == (Kind.LOST, "t/0/3")
    assert len(stream.window) == 3, "two sends and a run above the log start offset"


def test_an_explanation_may_come_late(stream: Stream) -> None:
    _done(stream, 3)
    ended = time.monotonic()
    stream.run(2, pid=1)
    assert stream.look() == []
    note_fault(stream.log, Fault("lease", ended - 1, ended + 1, os.getpid()))
    assert stream.look() == []
    stream.trim_to(4)
    assert stream.window.look().repeated == 1
    assert stream.window.look().repeated == 1, "it was forgotten, and counts"


def test_a_send_that_was_confirmed_and_is_nowhere_is_lost(stream: Stream) -> None:
    _done(stream, 1)
    stream.log.note("send", uid="u9", topic=TOPIC, key=None)
    stream.log.note("sent", uid="u9", as_uid="u9", topic=TOPIC, partition=None, offset=None)
    stream.look()
    (found,) = stream.look()
    assert found.kind is Kind.LOST and "u9" in found.where
