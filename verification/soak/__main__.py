"""``./dev soak HOURS=..``: hours of constant load with faults; exit code 1 unless everything stays flat."""

import argparse
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from emsworker.local import Redis
from tests.support.prepared import PreparedDatabase
from tests.support.servers import chosen, chosen_flavors
from tests.support.worker import ROOT
from verification.soak import report
from verification.soak.running import Plan, soak

RESULTS = ROOT / "verification" / "soak" / "results"
_say = partial(print, flush=True)


def _hours(text: str) -> float:
    hours = float(text.removeprefix("HOURS="))
    if not 0 < hours <= 24 * 30:
        raise ValueError(text)
    return hours


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("hours", type=_hours, metavar="HOURS=..", help="how long, on each server: HOURS=0.25, say")
    parser.add_argument("--seed", type=int, default=1, help="what is hit, and when (default 1)")
    parser.add_argument("--every", type=float, default=45.0, metavar="SECONDS", help="between faults (default 45)")
    parser.add_argument("--load", type=float, default=0.7, metavar="SHARE", help="of the capacity (default 0.7)")
    parser.add_argument("--no-faults", action="store_true", help="load only")
    parser.add_argument("--leaks", default="", metavar="NAMES", help="plant leaks: bodies,connections")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for the report")
    parser.add_argument("--keep", action="store_true", help="keep logs of what went well, too")
    return parser.parse_args()


def main() -> int:
    """Soak on each server, one after the other."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # by default the servers would be left behind
    arguments = _arguments()
    options = {"fault_every_s": arguments.every, "leaks": arguments.leaks, "share": arguments.load}
    if arguments.no_faults:
        options |= {"faults": (), "redis_faults": ()}
    plan = Plan.of_hours(arguments.hours, **options)
    folder = Path(tempfile.mkdtemp(prefix="ems-soak-"))
    bad = 0
    with ExitStack() as stack:
        redis = Redis(folder / "redis") if "redis" in chosen() else None
        if redis:
            stack.callback(redis.kill)
        for place, flavor in enumerate(chosen_flavors()):
            server = PreparedDatabase(folder / flavor, flavor)
            stack.callback(server.kill)
            _say(f"{flavor}: {arguments.hours:g} h, seed {arguments.seed}; logs in {folder}")
            # Half of them with offsets from Redis, as ./dev chaos does.
            with_redis = redis if redis and place % 2 else None
            done = soak(server, with_redis, folder / f"{flavor}-arena", arguments.seed, plan, _say)
            paths = report.write(done, arguments.results)
            server.kill()
            bad += not done.good
            _say(*report.lines(done), *done.wrong, sep="\n")
            _say(f"{flavor}: {report.summary(done)['verdict']}; {', '.join(map(str, paths))}")
    if not bad and not arguments.keep:
        shutil.rmtree(folder)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
