"""Three groups of a topic: in no order, by key and by partition; handlers fail at random, but the same in every run."""

import os
import time
import zlib
from pathlib import Path

from emsworker import Ems, Message

app = Ems("ordered")
GROUPS = ("free", "keyed", "serial")
_FOLDER = Path(os.environ["EMS_TEST_RECORD"])
_file = os.open(_FOLDER / f"runs-{os.getpid()}.csv", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_FAILING = float(os.environ.get("EMS_TEST_FAILING", "0"))
_WORK_S = float(os.environ.get("EMS_TEST_WORK_S", "0"))


def _fails(message: Message, group: str) -> bool:
    chance = zlib.crc32(f"{group}{message.id}{message.attempt}".encode()) / 2**32
    return chance < _FAILING


def _run(message: Message, group: str) -> None:
    began = time.monotonic()
    if _WORK_S:
        time.sleep(_WORK_S)
    if message.body == "slow":
        deadline = time.monotonic() + 100
        while not (_FOLDER / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    failing = _fails(message, group)
    key = message.key or ""
    line = f"{group},{key},{message.partition},{message.offset},{message.attempt},{began},{time.monotonic()},{int(failing)}\n"
    os.write(_file, line.encode())
    if failing:
        raise RuntimeError("by chance")


@app.subscribe("flights", "free")
def free(message: Message) -> None:
    _run(message, "free")


@app.subscribe("flights", "keyed", order="key")
def keyed(message: Message) -> None:
    _run(message, "keyed")


@app.subscribe("flights", "serial", order="partition")
def serial(message: Message) -> None:
    _run(message, "serial")
