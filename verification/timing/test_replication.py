"""Real replication: the primary is killed, its semi-synchronous replica takes over, nothing confirmed is lost."""

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.core.ids import parse_uid
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from tests.process.record import Record
from tests.support.looker import Looker
from tests.support.machine import machine_s
from tests.support.replication import Replicated, replicating
from tests.support.servers import connect
from tests.support.tables import migrate
from tests.support.waiting import until
from tests.support.worker import Program

pytestmark = pytest.mark.few

GOES_ON_S = 5.0


@pytest.fixture
def replicated(server: Server, tmp_path: Path) -> Iterator[Replicated]:
    with replicating(server.flavor, tmp_path) as pair:
        yield pair


class Sender(threading.Thread):
    """Sends numbers one after the other, and keeps when each was confirmed, and under which id."""

    def __init__(self, app: Ems) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.stopping = threading.Event()
        self.confirmed: dict[int, tuple[float, str]] = {}
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                number = len(self.confirmed)
                receipt = self._app.send("acts", {"n": number})
                self.confirmed[number] = (time.monotonic(), receipt.id)
        except BaseException as error:
            self.error = error


class ReplicaLooker(Looker):
    """Looks into the replica, but tells the programs of both servers."""

    def __init__(self, replicated: Replicated) -> None:
        super().__init__(replicated.url)
        self._connection = connect(replicated.replica_url, autocommit=True)


def test_sends_and_claims_go_on_with_the_replica_when_the_primary_dies(replicated: Replicated, tmp_path: Path) -> None:
    with Database(replicated.url).session() as session:
        migrate(session)
    until(replicated.has_applied_all, 20, "the tables are there")
    looker, record = ReplicaLooker(replicated), Record(tmp_path)
    acts = {"app": "tests.process.apps.actor:app", "topics": ["acts"], "groups": ["a"], "threads": 2}
    worker = Program("worker", looker, tmp_path / "worker.log", {}, **acts)
    sender = Sender(Ems("sender", url=replicated.url))
    try:
        worker.wait_ready()
        sender.start()
        until(lambda: len(record.events("end")) > 100, 20, "it runs")
        replicated.fail_over()
        promoted, before = time.monotonic(), len(sender.confirmed)
        until(lambda: len(sender.confirmed) > before + 100, GOES_ON_S, f"it sends; {sender.error}")
        until(lambda: record.numbers("end")[-1] > before, GOES_ON_S, f"it claims:\n{worker.text()[-2000:]}")
        sender.stopping.set()
        sender.join(30)
        until(lambda: set(sender.confirmed) <= set(record.numbers("end")), 20, "all confirmed ones are run")
        assert worker.stop() == 0
    finally:
        sender.stopping.set()
        if worker.process.poll() is None:
            worker.kill_all()
    first_send = min(at for at, _ in sender.confirmed.values() if at > promoted)
    first_claim = min(one["at"] for one in record.events("start") if one["at"] > promoted)
    first_send_s, first_claim_s = (machine_s(at) - machine_s(promoted) for at in (first_send, first_claim))
    assert sender.error is None
    print(
        f"{len(sender.confirmed)} sent; after the promotion a send after {first_send_s:.2f} s, a claim after {first_claim_s:.2f} s"
    )
    assert max(first_send_s, first_claim_s) < GOES_ON_S
    kept = looker.rows("SELECT uid, body FROM ems_message WHERE kind = 'message'")
    assert {uid for uid, _ in kept} == {parse_uid(message_id) for _, message_id in sender.confirmed.values()}
    assert Counter(json.loads(body)["n"] for _, body in kept) == Counter(sender.confirmed.keys()), "each once"
    looker.close()
