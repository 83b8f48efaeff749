"""The scenarios of chaos on EMS and on Redis, one after the other: the table of what each loses and runs again."""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from emsworker.local import Redis
from tests.celery.brokers import ems, on_redis, open_redis
from tests.celery.chaos import SCENARIOS, DatabaseFaults, Faults, Outcome, RedisFaults, Scenario, options_of
from tests.celery.project import Project
from tests.support.servers import TestServers, chosen_flavors, fresh_database

PATIENCE_S = 60.0


def run(servers: TestServers, on: str, scenario: Scenario) -> Outcome:
    """Run a scenario on a broker with nothing in it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ems-celery-")))
        faults: Faults
        if on == "redis":
            server = servers.redis()
            assert isinstance(server, Redis)
            open_redis(server)
            broker, faults = on_redis(server), RedisFaults(server, partial(open_redis, server, empty=False))
        else:
            database = servers.database(chosen_flavors()[0])
            url = stack.enter_context(fresh_database(database))
            broker, faults = ems(url), DatabaseFaults(database, url.rpartition("/")[2])
        project = stack.enter_context(Project(broker, folder, options_of(broker)))
        return scenario(project, faults, PATIENCE_S)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="./dev test-celery --only beside", description=__doc__)
    parser.add_argument("--on", action="append", choices=("ems", "redis"), help="default: both")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; default: all")
    chosen = parser.parse_args()
    servers = TestServers()
    try:
        print(
            "| scenario | broker | sent | hit | lost | ended twice | s |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"
        )
        for name in chosen.scenarios or SCENARIOS:
            for on in chosen.on or ("ems", "redis"):
                found = run(servers, on, SCENARIOS[name])
                row = (name, on, found.sent, found.hit, found.lost, found.again, f"{found.took_s:.1f}")
                print(f"| {' | '.join(map(str, row))} |", flush=True)
    finally:
        servers.close()


if __name__ == "__main__":
    main()
