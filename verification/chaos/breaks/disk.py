"""The disk of the database server is full: somebody else's file has taken the last byte, and is removed later."""

import contextlib
import re
import time
from typing import Any

from emsworker import Ems
from emsworker.chaos import Recorder
from emsworker.core.errors import PublishTimeout
from tests.support.waiting import until
from verification.chaos.arena import Arena
from verification.chaos.breaks.processes import BEYOND_LEASE_S
from verification.chaos.names import TOPIC

# Tables still have room in what is theirs: it has to be used up. MariaDB 10.11 dies of a longer body (an assertion in
# its code for values outside of their page), and sometimes of a short one.
_BODIES, _BODY_BYTES = 50, 3_000
_GIVE_UP_S, _BITES_S = 3.0, 60.0
_TELLS_WHY = re.compile(r"is full|[Nn]o space left|[Dd]isk full|\b28\b")


def fill_the_disk(arena: Arena) -> None:
    """Nobody may die of it: who works waits, who sends is told why, and all goes on when there is room again."""
    disk = arena.site.disk
    assert disk
    pids = {worker.pid for worker in arena.living()}
    seen = {worker.log: len(worker.text()) for worker in arena.living()}
    with arena.fault("disk"):
        disk.fill()
        reason = _refused(arena)
        time.sleep(BEYOND_LEASE_S)
        assert disk.free_bytes < 1 << 16, "it stayed full"
        survived = arena.server.alive
        disk.free()
        arena.server.start(120)  # as whoever watches over it does, if it died of its full disk
    print(f"  {'the server bore it' if survived else 'the server died of it'}; who sent was told: {reason}", flush=True)
    arena.goes_on()
    assert {worker.pid for worker in arena.living()} == pids, f"no worker ended:\n{arena.tail()}"
    told = "".join(worker.text()[seen[worker.log] :] for worker in arena.living())
    assert "Traceback" not in told, told[-6000:]
    if survived:
        assert _TELLS_WHY.search(reason), reason
        assert _TELLS_WHY.search(told), f"the workers say why they wait:\n{told[-3000:]}"


def _refused(arena: Arena) -> str:
    """Send until the server has no room for it; returns what the sender was told."""
    recorder = Recorder(arena.folder / "history", sync=False)
    errors: list[str] = []

    def send() -> bool:
        try:
            app.send_many(
                TOPIC, [{"work_s": 0, "fill": arena.chance.randbytes(_BODY_BYTES).hex()} for _ in range(_BODIES)]
            )
        except PublishTimeout as error:
            errors.append(str(error))
        return bool(errors)

    options: dict[str, Any] = {"url": arena.url, "middleware": [recorder], "publish_timeout_s": _GIVE_UP_S}
    with contextlib.closing(Ems("filler", **options)) as app:
        until(send, _BITES_S, "the server has no room", 0.0)
    return errors[0]
