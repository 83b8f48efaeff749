"""An app whose handler leaks."""

import os
import time
from contextlib import suppress
from pathlib import Path

from emsworker import Ems, Message
from emsworker.worker.recycler import resident_mib
from tests.process.record import note

app = Ems("leaky")
_hoard: list[bytes] = []
_open: list[int] = []


@app.subscribe("leaks", "a")
def leak(message: Message) -> None:
    n = message.body["n"]
    note("start", n=n)
    _hoard.extend(os.urandom(1 << 20) for _ in range(message.body.get("mib", 0)))
    if message.body.get("descriptors"):
        with suppress(OSError):
            while True:
                _open.append(os.dup(0))
    while message.body.get("held") and not (Path(os.environ["EMS_TEST_RECORD"]) / "go").exists():
        time.sleep(0.01)
    time.sleep(message.body.get("s", 0))
    note("end", n=n, mib=resident_mib())
