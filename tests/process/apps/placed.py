"""Nine topics on three servers, each with a group in the order of keys; every run is a line in a file."""

import os
import time
import uuid
from pathlib import Path
from typing import Any

from emsworker import Ems, Message

app = Ems("placed")
TOPICS = [f"{server}.{number}" for server in ("main", "east", "west") for number in range(3)]
_FOLDER = Path(os.environ.get("EMS_TEST_RECORD", os.devnull))
_file = (
    -1
    if Path(os.devnull) == _FOLDER
    else os.open(_FOLDER / f"runs-{os.getpid()}.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
)


def _run(message: Message) -> None:
    os.write(_file, f"{message.topic},{message.key},{message.body},{time.monotonic()}\n".encode())


for _topic in TOPICS:
    app.subscribe(_topic, "readers", order="key")(_run)


@app.task(topic="main.calls", transactional=True)
def hand_over(tx: Any, n: int) -> None:
    """Count, and send on to another server, in one transaction."""
    tx.execute("UPDATE effect SET n = n + 1 WHERE id = 1")
    add.apply_async((n,), task_id=str(uuid.UUID(int=(7 << 76) | (2 << 62) | n)), transaction=tx)


@app.task(topic="east.calls", result=True)
def add(n: int) -> int:
    """Return the next number."""
    os.write(_file, f"east.calls,,{n},{time.monotonic()}\n".encode())
    return n + 1
