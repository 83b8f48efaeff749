"""An app in whose processes side threads die of errors that nobody has foreseen, once each."""

import asyncio
import os
from pathlib import Path
from typing import Any

from emsworker import Ems, Message
from emsworker.consume.lease import LeaseRenewer
from emsworker.consume.listener import Listener
from emsworker.consume.poller import Poller
from tests.process.record import note

app = Ems("mortal")


def _first(name: str) -> bool:
    try:
        os.close(os.open(Path(os.environ["EMS_TEST_RECORD"]) / name, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def _mortal(kind: type[Any], method: str) -> None:
    """Have a method raise where the environment asks for it, in the first process that comes there."""
    good = getattr(kind, method)

    def fails(self: Any, *args: Any) -> Any:
        if os.environ.get("EMS_TEST_DIES") == kind.__name__ and _first(kind.__name__):
            raise LookupError("nobody has foreseen this")
        return good(self, *args)

    setattr(kind, method, fails)


_mortal(Listener, "_listen")
_mortal(Poller, "_look")
_mortal(LeaseRenewer, "renew")


@app.subscribe("plain", "plain")
def plain(message: Message) -> None:
    note("end", n=message.body["n"])


@app.subscribe("loop", "loop", concurrency=4)
async def stops_the_loop(message: Message) -> None:
    note("start", n=message.body["n"])
    if message.body.get("stop") and _first("loop"):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)
    note("end", n=message.body["n"])


@app.subscribe("news", broadcast=True)
async def hears(message: Message) -> None:
    if message.body.get("stop") and _first("broadcast"):
        asyncio.get_running_loop().stop()
        await asyncio.sleep(60)
    note("heard", n=message.body["n"])
