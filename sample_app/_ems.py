"""Stands in for the command `ems` until it is there."""

import argparse
import logging
import sys
import threading

from emsworker.core.config import Settings
from emsworker.runtime.beat import Beat
from emsworker.runtime.child import ChildSpec
from emsworker.runtime.supervisor import Supervisor
from emsworker.store.database import Database

parser = argparse.ArgumentParser()
parser.add_argument("command")
for name in ("-A", "--name", "--log-level"):
    parser.add_argument(name)
parser.add_argument("--processes", type=int)
parser.add_argument("--threads", type=int)
a = parser.parse_args()
logging.basicConfig(level=a.log_level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")
settings = Settings.load()
database = Database(settings.url or "")
if a.command == "beat":
    import signal

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    beat = Beat(database, settings, lambda *_: None)
    beat.start()
    stop.wait()
    beat.stop()
    beat.join()
    sys.exit(0)
spec = ChildSpec(a.A, (), (), a.threads, "", a.name, a.log_level, 0)
sys.exit(Supervisor(spec, a.processes, database, settings).run())
