"""A server that takes packets of 1 MiB: whatever is larger goes in parts, or is refused at once, and is never stuck."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from emsworker import Ems, TaskFailed
from emsworker.core.errors import MessageTooLarge
from emsworker.core.ids import new_uid, uid_text
from emsworker.local import LocalDatabase as Server
from tests.process.apps import results as tasks
from tests.process.stream import Stream, open_stream
from tests.support.servers import connect, set_globals
from tests.support.waiting import until

APP = "tests.process.apps.results:app"
LIMIT = 1 << 20
MANY, FAILING = 40, 200


@pytest.fixture
def small(server: Server, tmp_path: Path) -> Iterator[Stream]:
    """A stream on a server with the limit."""
    with connect(server.admin_url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
        ((before,),) = cursor.fetchall()
    try:
        with open_stream(server, tmp_path) as stream:
            set_globals(server, f"SET GLOBAL max_allowed_packet = {LIMIT}")
            yield stream
    finally:
        set_globals(server, f"SET GLOBAL max_allowed_packet = {before}")


@pytest.fixture
def app(small: Stream) -> Ems:
    """The tasks of the worker, here as their sender."""
    app = small.app = Ems("caller", url=small.url)
    for task in next(iter(tasks.app.registry.routes.values())).tasks.values():
        app.task(name=task.name)(task.function)
    return app


def _send(app: Ems, name: str, *arguments: list[Any]) -> list[Any]:
    task = next(iter(app.registry.routes.values())).tasks[name]
    return [task.delay(*args) for args in arguments]


def test_results_larger_than_a_packet_go_in_parts(small: Stream, app: Ems) -> None:
    receipts = _send(app, "big", *[[510_000]] * 12)
    (over,) = _send(app, "big", [900_000])
    worker = small.worker(APP, settings={"claim_s": 5})
    assert {len(value) for value in app.results(receipts).get(60)} == {510_000}
    with pytest.raises(TaskFailed, match="900002 bytes is over the limit of what the server takes"):
        app.result(over).get(30)
    small.wait_settled()
    assert worker.stop() == 0


def test_errors_larger_than_a_packet_go_in_parts(small: Stream, app: Ems) -> None:
    receipts = _send(app, "fail", *[["ü" * 9000]] * FAILING)
    worker = small.worker(APP, settings={"claim_s": 5, "ack_interval_s": 2})
    values = app.results(receipts).get(60, raises=False)
    assert all(isinstance(value, TaskFailed) and value.message == "ü" * 8000 for value in values)
    assert small.one("SELECT COUNT(*) FROM ems_dead") == FAILING
    assert small.one("SELECT COUNT(*) FROM ems_attempt") == 2 * FAILING
    assert worker.stop() == 0


def test_messages_of_the_outbox_go_in_parts(small: Stream) -> None:
    """They are more than the server takes at once, when they are written down and when they are moved."""
    app, bodies = small.app, [{"n": n, "text": "x" * 100_000} for n in range(MANY)]
    app.send_many("later", bodies, countdown=0.2)
    with app.transaction() as tx:
        tx.send_many("now", bodies)
    with connect(small.url) as connection:
        app.send_many("theirs", bodies, transaction=connection)
        connection.commit()
    small.beat()
    until(lambda: small.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0") == 3 * MANY, 30, small.logs())
    assert small.one("SELECT COUNT(*) FROM ems_outbox") == 0
    places = "SELECT topic_id, `partition`, `offset` FROM ems_message WHERE `offset` > 0 ORDER BY 1, 2, 3"
    offsets: dict[tuple[int, int], list[int]] = {}
    for topic_id, partition, offset in small.rows(places):
        offsets.setdefault((topic_id, partition), []).append(offset)
    assert all(found == list(range(1, len(found) + 1)) for found in offsets.values())


@pytest.mark.parametrize("how", ["at once", "later", "transaction", "theirs"])
def test_one_message_larger_than_a_packet_is_refused(small: Stream, how: str) -> None:
    app, body = small.app, {"text": "x" * 700_000}
    with pytest.raises(MessageTooLarge, match="max_allowed_packet"):
        if how == "transaction":
            with app.transaction() as tx:
                tx.send("acts", body)
        elif how == "theirs":
            with connect(small.url) as connection:
                app.send("acts", body, transaction=connection)
        else:
            app.send("acts", body, countdown=0.2 if how == "later" else None)
    assert (
        small.one("SELECT (SELECT COUNT(*) FROM ems_outbox) + (SELECT COUNT(*) FROM ems_message WHERE `offset` > 0)")
        == 0
    )
    assert app.send("acts", {"n": 1}).created


def test_any_number_of_results_can_be_asked_for(small: Stream, app: Ems) -> None:
    (receipt,) = _send(app, "add", [1, 2])
    worker = small.worker(APP)
    assert app.result(receipt).get(30) == 3
    uids = [uid_text(new_uid()) for _ in range(40_000)]
    found = app.results([*uids, receipt])
    assert not found.ready
    assert found[-1].status == "done" and found.progress[-1] is None
    found.forget()
    assert app.result(receipt).status == "pending"
    assert worker.stop() == 0
