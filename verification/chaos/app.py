"""What is run while everything breaks: one topic, four groups; run as a module it is one producer."""

import ctypes
import os
import random
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from emsworker import Ems, Message
from emsworker.chaos import Recorder
from emsworker.core.errors import EmsError
from emsworker.publish.transaction import Transaction
from verification.chaos.names import GROUPS, KEYS, PARTITIONS, TOPIC

_FOLDER = Path(os.environ["EMS_TEST_RECORD"])
# Not synced to the disk: processes die here, and machines do not.
_ROLL_BYTES = int(os.environ.get("EMS_TEST_ROLL_BYTES", "0")) or None
app = Ems("chaos", middleware=[Recorder(_FOLDER / "history", sync=False, roll_bytes=_ROLL_BYTES)])


ALSO: list[Callable[[Message], None]] = []
"""What every run does besides: a soak plants its leaks here."""


def _hog() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))
    hoard = []
    while True:
        hoard.append(bytearray(64 << 20))


def _loop() -> None:
    while True:
        pass


_DEEDS = {
    "exit": lambda: os._exit(0),
    "segfault": lambda: ctypes.string_at(0),
    "bomb": _hog,
    "loop": _loop,
}


def _work(message: Message) -> None:
    if (_FOLDER / "storm").exists():
        raise RuntimeError("everything fails")
    for also in ALSO:
        also(message)
    body = message.body
    if deed := body.get("do"):
        _DEEDS[deed]()
    if body["work_s"]:
        time.sleep(body["work_s"])


@app.subscribe(TOPIC, GROUPS[0])
def plain(message: Message) -> None:
    _work(message)


@app.subscribe(TOPIC, GROUPS[1], order="key")
def keyed(message: Message) -> None:
    if not message.body.get("do"):
        _work(message)


@app.subscribe(TOPIC, GROUPS[2], order="partition")
def serial(message: Message) -> None:
    if not message.body.get("do"):
        _work(message)


@app.subscribe(TOPIC, GROUPS[3], transactional=True)
def cash(transaction: Transaction, message: Message) -> None:
    transaction.execute("INSERT INTO cash (uid) VALUES (%s)", (message.id,))
    if not message.body.get("do"):
        _work(message)


def _produce(seed: int, pause_s: float) -> None:
    """Send from three threads until SIGTERM; what fails is not confirmed, and the next is sent."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threads = [threading.Thread(target=_send, args=(seed * 10 + n, pause_s * 3, stopping)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()


def _send(seed: int, pause_s: float, stopping: threading.Event) -> None:
    chance = random.Random(seed)
    while not stopping.wait(pause_s * chance.uniform(0.5, 1.5)):
        body = {"work_s": chance.choice((0, 0.01, 0.03, 0.06))}
        try:
            if chance.random() < 0.2:
                app.send_many(TOPIC, [body] * 4, key=chance.choice(KEYS))
            elif chance.random() < 0.1:
                app.send(TOPIC, body, countdown=0.2, partition=chance.randrange(PARTITIONS))
            else:
                app.send(TOPIC, body, key=chance.choice(KEYS))
        except EmsError as error:
            print(f"not confirmed: {error!r}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    _produce(int(sys.argv[1]), float(sys.argv[2]))
