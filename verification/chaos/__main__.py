"""``./dev chaos``: every scenario on every server; a table, and exit code 1 if a promise was broken."""

import argparse
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import dropwhile, groupby
from pathlib import Path

from emsworker.local import Redis
from emsworker.local.engines import Flavor
from tests.support.prepared import PreparedDatabase
from tests.support.servers import chosen, chosen_flavors
from tests.support.worker import ROOT
from verification.chaos import held, mutants, table
from verification.chaos.held import Held
from verification.chaos.mutants import MUTANTS, catch
from verification.chaos.running import Row, run_scenarios
from verification.chaos.scenarios import CLUSTERS, SCENARIOS, Scenario
from verification.chaos.sites import CannotMount
from verification.chaos.throughput import NAME, iter_throughput

_PHASE_S = 8.0
RESULTS = ROOT / "verification" / "chaos" / "results"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=1, help="what is hit, and when (default 1); the next one has the other allocators"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="scenarios with this in their names"
    )
    parser.add_argument("--from", dest="first", metavar="TEXT", help="begin with the scenario with this in its name")
    parser.add_argument(
        "--hold",
        type=float,
        default=10,
        metavar="MINUTES",
        help="how long somebody else's transaction is held open beside the rest (default 10)",
    )
    parser.add_argument(
        "--both", action="store_true", help="each scenario with both allocators on each server, not with one in turn"
    )
    parser.add_argument(
        "--engine",
        choices=sorted(CLUSTERS),
        help="on three nodes of a cluster instead (router: a replication group behind MySQL Router), what breaks there",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=10,
        help="how long the scenarios of --engine are repeated; each is run at least once (default 10)",
    )
    parser.add_argument("--mutants", action="store_true", help="spoil the code instead, and see that it is noticed")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for JSON and Markdown")
    parser.add_argument("--publish", action="store_true", help="put the table into the documentation")
    parser.add_argument("--keep", action="store_true", help="keep histories and logs of what went well, too")
    return parser.parse_args()


def main() -> int:
    """Run them all."""
    arguments = _arguments()
    if arguments.mutants:
        return _catch_all(arguments)
    if arguments.engine:
        return _break_cluster(arguments)
    scenarios = [one for one in SCENARIOS if not arguments.only or any(text in one.name for text in arguments.only)]
    if arguments.first:
        scenarios = list(dropwhile(lambda one: arguments.first not in one.name, scenarios))
    measured = not arguments.only or any(text in NAME for text in arguments.only)
    folder = Path(tempfile.mkdtemp(prefix="ems-chaos-"))
    began = time.monotonic()
    print(f"seed {arguments.seed}; {len(scenarios)} scenarios on {', '.join(chosen_flavors())}; logs in {folder}")
    print(table.header(), flush=True)
    about: dict[str, object] = {"seed": arguments.seed, "servers": chosen_flavors()}
    rows: list[Row] = []
    hold_s = 60 * arguments.hold if not arguments.only or any(text in held.NAME for text in arguments.only) else 0
    for row in _run_all(scenarios, folder, arguments.seed, arguments.both, measured, hold_s):
        rows.append(row)
        table.save(rows, arguments.results, about | {"took_s": round(time.monotonic() - began)})
    bad = [row for row in rows if not row.good]
    print(
        f"{len(rows)} runs in {time.monotonic() - began:.0f} s, {len(bad)} bad; {arguments.results}/chaos.json and .md"
    )
    if arguments.publish:
        table.publish(arguments.results / "chaos.json")
    if not bad and not arguments.keep:
        shutil.rmtree(folder)
    return 1 if bad or not rows else 0


def _break_cluster(arguments: argparse.Namespace) -> int:
    """Run the scenarios of a cluster, on a cluster of its own."""
    found = [
        one for one in CLUSTERS[arguments.engine] if not arguments.only or any(t in one.name for t in arguments.only)
    ]
    folder = Path(tempfile.mkdtemp(prefix="ems-chaos-"))
    print(
        f"seed {arguments.seed}; {len(found)} scenarios on {arguments.engine} for {arguments.minutes:g} minutes; "
        f"logs in {folder}"
    )
    print(table.header(), flush=True)
    began = time.monotonic()
    flavor: Flavor = "mariadb" if arguments.engine == "galera" else "mysql"
    server = PreparedDatabase(folder / "unused", flavor)
    running = run_scenarios(found, server, None, folder / "arena", arguments.seed, 60 * arguments.minutes)
    about: dict[str, object] = {"seed": arguments.seed, "engine": arguments.engine}
    rows: list[Row] = []
    for row in _told(running, arguments.engine, flavor):
        rows.append(row)
        table.save(rows, arguments.results / arguments.engine, about | {"took_s": round(time.monotonic() - began)})
    good = bool(rows) and all(row.good for row in rows)
    if arguments.publish:
        table.publish_clusters(arguments.results)
    if good and not arguments.keep:
        shutil.rmtree(folder)
    return 0 if good else 1


def _catch_all(arguments: argparse.Namespace) -> int:
    """Run the mutants on every server."""
    chosen_ones = [one for one in MUTANTS if not arguments.only or any(text in one.name for text in arguments.only)]
    folder = Path(tempfile.mkdtemp(prefix="ems-chaos-"))
    about: dict[str, object] = {"seed": arguments.seed, "servers": chosen_flavors()}
    print(f"seed {arguments.seed}; {len(chosen_ones)} mutants on {', '.join(chosen_flavors())}; logs in {folder}")
    rows = []
    with ExitStack() as stack:
        redis = Redis(folder / "redis")
        stack.callback(redis.kill)
        for flavor in chosen_flavors():
            server = PreparedDatabase(folder / flavor, flavor)
            stack.callback(server.kill)
            for number, mutant in enumerate(chosen_ones):
                rows.append(catch(mutant, server, redis, folder / f"{flavor}-mutant-{number}", arguments.seed))
                print(mutants.line(rows[-1]), flush=True)
                table.save_mutants(rows, arguments.results, about)
            server.kill()
    good = bool(rows) and all(row.good for row in rows)
    if arguments.publish:
        table.publish_mutants(arguments.results / "mutants.json")
    if good and not arguments.keep:
        shutil.rmtree(folder)
    return 0 if good else 1


def _run_all(
    scenarios: list[Scenario], folder: Path, seed: int, both: bool, measured: bool, hold_s: float
) -> Iterator[Row]:
    with ExitStack() as stack:
        beside = []
        for flavor in chosen_flavors() if hold_s else ():
            where = folder / f"{flavor}-held"
            beside.append(Held(PreparedDatabase(where / "server", flavor), where / "logs", _PHASE_S, hold_s))
            stack.callback(beside[-1].close)
            yield from _told(_begun(beside[-1]), held.NAME, flavor)
        redis = Redis(folder / "redis") if "redis" in chosen() else None
        if redis:
            stack.callback(redis.kill)
        for place, flavor in enumerate(chosen_flavors()):
            server = PreparedDatabase(folder / flavor, flavor)
            stack.callback(server.kill)
            for number, (shared, some) in enumerate(groupby(scenarios, lambda one: one.place)):
                group = list(some)
                if group[0].redis and not redis:
                    print("--  those that break Redis are left out: it is not among EMS_TEST_SERVERS")
                    continue
                turns = (
                    [redis]
                    if group[0].redis
                    else [None, redis]
                    if both and redis
                    else [(redis, None)[(number + place + seed) % 2]]
                )
                for with_redis in turns:
                    where = folder / f"{flavor}-{number}-{'redis' if with_redis else 'mysql'}"
                    yield from _told(run_scenarios(group, server, with_redis, where, seed), shared, flavor)
            if measured:
                yield from _told(iter_throughput(server, folder / f"{flavor}-throughput", _PHASE_S), NAME, flavor)
            server.kill()
        for one, flavor in zip(beside, chosen_flavors(), strict=False):
            if one.is_open:
                yield from _told(one.rows(), held.NAME, flavor)


def _begun(one: Held) -> Iterator[Row]:
    """No row yet, but what it raises is told as one."""
    one.begin()
    yield from ()


def _told(rows: Iterator[Row], name: str, flavor: str) -> Iterator[Row]:
    """The rows as they come; what fails must not keep the others from being run."""
    began = time.monotonic()
    try:
        for row in rows:
            _tell(row)
            yield row
    except Exception as error:
        if isinstance(error, CannotMount) and not os.environ.get("CI"):
            print(f"--  {name} is left out on {flavor}: {error}", flush=True)
            return
        text = "".join(traceback.format_exception(error))[-3000:]
        row = Row(name, flavor, "?", 0, 0, 0, 0, 0, 0, 0, None, None, round(time.monotonic() - began, 1), text)
        _tell(row)
        yield row


def _tell(row: Row) -> None:
    print(table.line(row), flush=True)
    if row.wrong:
        print(row.wrong, flush=True)


if __name__ == "__main__":
    sys.exit(main())
