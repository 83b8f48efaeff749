"""Bodies that are too large for a message: whole at their handlers, gone with their messages, whatever dies."""

import hashlib
import os
import random
import subprocess
import sys

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from tests.process.stream import Stream
from tests.support.servers import connect, set_globals
from tests.support.waiting import until

APP = "tests.process.apps.large:app"
BODIES, CHUNKS = "SELECT COUNT(*) FROM ems_large_body", "SELECT COUNT(*) FROM ems_body_chunk"
_CHUNKS_OF_ONE = 20
_SENDER = """
import hashlib, os, sys
from emsworker import Ems
app = Ems("sender")
while True:
    body = os.urandom(5 << 20)
    print(app.send("blobs", body, headers={"sha256": hashlib.sha256(body).hexdigest()}).id, flush=True)
"""


def test_100_mb_reach_every_handler_of_a_server_that_takes_16(stream: Stream) -> None:
    before = stream.one("SELECT @@GLOBAL.max_allowed_packet")
    set_globals(stream.server, f"SET GLOBAL max_allowed_packet = {16 << 20}")
    try:
        admin = Admin(stream.app)
        admin.create_topic("blobs", max_message_bytes=200 << 20, keep_done_s=0)
        admin.create_topic("calls", max_message_bytes=200 << 20)
        worker = stream.worker(APP, settings={"beat_s": 0.1})
        sender = Ems("sender", url=stream.urls["sender"])
        body = random.Random(1).randbytes(100_000_000)
        receipt = sender.send("blobs", body)
        call = sender.publisher.send("calls", [["x" * (5 << 20)], {}], headers={"ems-task": "count"})
        wanted = hashlib.sha256(body).hexdigest()
        for group in ("threads", "coroutines"):
            assert sender.result(receipt, group=group).get(60) == wanted
        assert sender.result(call).get(30) == 5 << 20
        until(lambda: stream.one(BODIES) == 1, 30, f"the body that is done is deleted; {stream.logs()}")
        assert stream.one(CHUNKS) == stream.one("SELECT SUM((size + 262143) DIV 262144) FROM ems_large_body")
        assert worker.stop() == 0
        sender.close()
    finally:
        set_globals(stream.server, f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.slow
def test_a_killed_sender_leaves_no_message_without_its_body_and_no_body_without_its_message(stream: Stream) -> None:
    Admin(stream.app).create_topic("blobs", max_message_bytes=200 << 20)
    chance, confirmed = random.Random(29), set[str]()
    for _ in range(2):
        sender = subprocess.Popen(
            [sys.executable, "-c", _SENDER],
            env={**os.environ, "EMS_URL": stream.url},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert sender.stdout is not None
        confirmed |= {sender.stdout.readline().strip() for _ in range(chance.randint(1, 2))}
        written = chance.randint(1, 18)
        until(lambda written=written: _uncommitted(stream) >= written, 20, "it is within a transaction", 0.005)
        sender.kill()
        confirmed |= set(filter(None, sender.stdout.read().split()))
        sender.wait()
    until(lambda: not _uncommitted(stream), 20, "the server has rolled back what was not committed")
    Admin(stream.app).create_group("blobs", "readers")
    stream.beat()
    until(lambda: stream.one("SELECT COUNT(*) FROM ems_outbox") == 0, 20, "all are in the stream")
    count = stream.one("SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
    assert stream.one(BODIES) == count >= len(confirmed) >= 2
    assert stream.one(CHUNKS) == _CHUNKS_OF_ONE * count
    with stream.app.consumer("blobs", "readers") as consumer:
        for _ in range(count):
            message = consumer.fetch(1, wait=20)[0]
            assert hashlib.sha256(message.body).hexdigest() == message.headers["sha256"]
            confirmed.discard(message.id)
            consumer.ack(message)
    assert not confirmed


def _uncommitted(stream: Stream) -> int:
    """The chunks of the body whose transaction is open; MySQL's list of transactions is too old for who asks often."""
    with connect(stream.url) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        cursor.execute(CHUNKS)
        return int(cursor.fetchall()[0][0]) % _CHUNKS_OF_ONE
