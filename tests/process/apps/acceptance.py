"""Three topics, three groups, one of them transactional; run as a module it is one producer."""

import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from emsworker import Ems, Message
from emsworker.publish.transaction import Transaction
from tests.process.apps.acceptance_names import GROUPS, TOPICS

app = Ems("acceptance")
_file = os.open(
    Path(os.environ["EMS_TEST_RECORD"]) / f"runs-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
)


def _note(message: Message, group: str, began: float) -> None:
    values = [message.topic, message.partition, message.offset, group, message.id, threading.get_native_id(), began]
    os.write(_file, json.dumps([*values, time.monotonic(), os.getpid()]).encode() + b"\n")


def _work(message: Message) -> None:
    time.sleep(message.body["work_s"])


def _plain(group: str) -> Callable[[Message], None]:
    def run(message: Message) -> None:
        began = time.monotonic()
        _work(message)
        _note(message, group, began)

    return run


def _transactional(transaction: Transaction, message: Message) -> None:
    began = time.monotonic()
    transaction.execute("INSERT INTO cash (uid) VALUES (%s)", (message.id,))
    _work(message)
    _note(message, "cash", began)


for _topic in TOPICS:
    for _group in GROUPS[:2]:
        app.subscribe(_topic, _group)(_plain(_group))
    app.subscribe(_topic, GROUPS[2], transactional=True)(_transactional)


def _produce(arguments: Sequence[str]) -> None:
    """Send until the deadline, and note every receipt."""
    number, for_s, pause_s = int(arguments[0]), float(arguments[1]), float(arguments[2])
    chance = random.Random(number)
    folder = Path(os.environ["EMS_TEST_RECORD"])
    deadline = time.monotonic() + for_s
    with (folder / f"sent-{number}.jsonl").open("w") as sent:
        while time.monotonic() < deadline:
            topic = chance.choice(TOPICS)
            bodies: list[dict[str, Any]] = [{"work_s": chance.choice((0, 0, 0.001, 0.01))} for _ in range(5)]
            if chance.random() < 0.5:
                receipts = app.send_many(topic, bodies)
            else:
                receipts = [app.send(topic, body) for body in bodies[:2]]
            sent.writelines(json.dumps([receipt.topic, receipt.id]) + "\n" for receipt in receipts)
            time.sleep(pause_s)
    app.close()


if __name__ == "__main__":
    _produce(sys.argv[1:])
