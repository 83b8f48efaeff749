"""``./dev bench-celery``: Celery on EMS beside Celery on Redis and on RabbitMQ, in turns."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import median

from bench.celery.contest import DEFAULT, QUICK, run
from bench.celery.sides import EMS, REDIS, SIDES, Brokers, Side
from bench.stage import Servers
from emsworker.local import ServerMissing

Figures = dict[str, dict[str, list[float]]]


def table(found: Figures) -> str:
    """Medians, and EMS beside Redis: what is larger when it is better is divided by Redis's."""
    sides = [side for side in SIDES if side.name in found]
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    head = ["figure", *(side.title for side in sides), "EMS / Redis"]
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(sides) + 1)}"]
    for name in names:
        medians = {side.name: median(found[side.name][name]) for side in sides if name in found[side.name]}
        cells = [format(medians[side.name], ",.1f") if side.name in medians else "" for side in sides]
        lines.append(f"| {' | '.join([name, *cells, _ratio(medians, name)])} |")
    return "\n".join(lines)


def _ratio(medians: dict[str, float], name: str) -> str:
    ours, theirs = medians.get(EMS.name), medians.get(REDIS.name)
    if name == "delay/s, unconfirmed":
        theirs = None  # Redis has no such thing; see the line above
    return f"{ours / theirs:.2f}" if ours and theirs else ""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench-celery", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few tasks, once: to see that it works")
    parser.add_argument("--repeats", type=int, metavar="N", help="how often the brokers take turns (default: 3)")
    parser.add_argument("--server", choices=("mariadb", "mysql"), default="mariadb", help="what EMS runs on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every repeat to a file")
    parser.add_argument("sides", nargs="*", metavar="SIDE", help=f"of {', '.join(s.name for s in SIDES)}; default: all")
    found = parser.parse_args()
    if unknown := set(found.sides) - {side.name for side in SIDES}:
        parser.error(f"no such side: {', '.join(sorted(unknown))}")
    return found


def main() -> int:
    """Run the sides in turns, and print medians after each round."""
    chosen = _arguments()
    size = QUICK if chosen.quick else DEFAULT
    size = replace(size, repeats=chosen.repeats or size.repeats)
    sides: list[Side] = [side for side in SIDES if not chosen.sides or side.name in chosen.sides]
    found: Figures = {}
    with tempfile.TemporaryDirectory(prefix="ems-bench-celery-") as name:
        folder = Path(name)
        with Servers(folder, chosen.server) as servers, Brokers(servers, folder) as brokers:
            for _ in range(size.repeats):
                for side in list(sides):
                    try:
                        figures = run(brokers, side, size, folder)
                    except ServerMissing as error:
                        print(f"left out: {side.title}: {error}", flush=True)
                        sides.remove(side)
                        continue
                    print(f"  {side.title}: {figures}", flush=True)
                    for figure, value in figures.items():
                        found.setdefault(side.name, {}).setdefault(figure, []).append(value)
            versions = {side.name: brokers.version_of(side) for side in sides}
    print(table(found))
    print("\n".join(f"{side.title}: {versions[side.name]}, {side.durability}" for side in sides))
    if chosen.json:
        content = {"celery": version("celery"), "kombu": version("kombu"), "versions": versions, "sides": found}
        chosen.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
