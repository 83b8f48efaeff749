"""What ``ems worker`` does, for as long as the command is not there: ``python -m bench.supervise TOPIC``."""

from __future__ import annotations

import logging
import sys

from bench.app import app
from bench.worker import PROCESSES, THREADS
from emsworker.runtime.child import ChildSpec
from emsworker.runtime.supervisor import Supervisor


def main(topic: str) -> int:
    """Run a supervisor with its beat until told to stop."""
    logging.basicConfig(level=logging.WARNING)
    spec = ChildSpec(
        app="bench.app",
        topics=(topic,),
        groups=(),
        threads=THREADS,
        process_id="",
        name="bench",
        log_level="warning",
        parent=-1,
        url=app.url,
    )
    return Supervisor(spec, PROCESSES, app.database, app.settings).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
