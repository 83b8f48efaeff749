"""The renewer of a solo worker: a process that renews its leases while a debugger has stopped all of its threads.

It lives as long as its parent: when that dies, it ends the leases at once, so that recovery need not wait for them.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial

from emsworker.consume.lease import end_leases, renew_leases
from emsworker.core.config import Settings
from emsworker.core.errors import EmsError, StoreError
from emsworker.core.process.clock import ticks
from emsworker.core.process.outage import best_effort
from emsworker.core.process.role import claim_role
from emsworker.core.process.runnable import Trouble
from emsworker.core.process.scratch import open_scratch, read_scratch
from emsworker.observe.logs import configure_logging
from emsworker.store import Database
from emsworker.worker.child_spec import ChildSpec

log = logging.getLogger("emsworker.worker.renewer")  # it runs as __main__

_LOOK_S = 0.2
_CALL_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class RenewerSpec:
    """The process whose leases are renewed.

    Args:
        parent: its process id.
        process_id: groups its client rows.
    """

    parent: int
    process_id: str
    url: str = field(repr=False)
    connect_timeout_s: float
    lease_s: float
    renew_s: float
    log_level: str
    log_format: str


class RenewerProcess:
    """The renewer, as its parent sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, spec: ChildSpec, settings: Settings, url: str) -> RenewerProcess:
        """Start a renewer of the calling process.

        Args:
            spec: of the calling process.
            url: of the server on which its clients are registered.
        """
        order = RenewerSpec(
            os.getpid(),
            spec.process_id,
            url,
            settings.connect_timeout_s,
            settings.lease_s,
            settings.renew_s,
            spec.log_level,
            spec.log_format,
        )
        with open_scratch(json.dumps(asdict(order))) as told:
            # A session of its own: Ctrl-C and the end of the terminal are for the worker alone.
            process = subprocess.Popen(
                [sys.executable, "-m", "emsworker.worker.renewer", str(told.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[told.fileno()],
                start_new_session=True,
            )
        return cls(process)

    def stop(self) -> None:
        """End it, and wait for its end."""
        self._process.kill()
        self._process.wait()


def renew_until_end(spec: RenewerSpec) -> None:
    """Renew the leases of a process until it ends, then delete them."""
    database = Database(spec.url, spec.connect_timeout_s, _CALL_TIMEOUT_S)
    trouble, due = Trouble(log), 0.0
    while os.getppid() == spec.parent:
        if ticks() >= due:
            due = ticks() + spec.renew_s
            try:
                database.call(partial(renew_leases, process_id=spec.process_id, lease_s=spec.lease_s))
            except (StoreError, EmsError) as error:
                trouble.note("cannot renew the leases of a solo worker", error)
            else:
                trouble.over("the leases of a solo worker are renewed")
        time.sleep(_LOOK_S)
    with best_effort(log, "could not end the leases of a solo worker; they run out by themselves"):
        database.call(partial(end_leases, process_id=spec.process_id))


if __name__ == "__main__":
    claim_role("worker")
    spec = RenewerSpec(**json.loads(read_scratch(int(sys.argv[1]))))
    configure_logging(spec.log_level, spec.log_format)
    renew_until_end(spec)
