"""``./dev bench-flows``: flows of EMS, workflows of DBOS and Celery's canvas, in turns; every commit is synced.

``sleeping`` instead measures what flows cost that wait, on MariaDB and MySQL.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from bench.flows import rates, sleeping


def main() -> int:
    """Measure, and print tables."""
    parser = argparse.ArgumentParser(
        prog="./dev bench-flows", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("rates", "sleeping", "all"), default="rates", help="default: rates")
    parser.add_argument("--quick", action="store_true", help="few steps, once: to see that it works")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often they take turns (default: 3)")
    parser.add_argument(
        "--within",
        type=float,
        default=150.0,
        metavar="S",
        help="seconds that a side may take for a line (default: 150)",
    )
    parser.add_argument(
        "--server", choices=("mariadb", "mysql"), help="for sleeping: only on this one (default: on both)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write every round to a file")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # servers and workers end with it
    found: dict[str, object] = {}
    if chosen.what != "sleeping":
        measured = rates.measure(1 if chosen.quick else chosen.rounds, chosen.within, quick=chosen.quick)
        print(rates.tables(measured), flush=True)
        found["rates"] = {title: asdict(one) for title, one in measured.items()}
    if chosen.what != "rates":
        found["sleeping"] = slept = sleeping.measure(
            [chosen.server] if chosen.server else ["mariadb", "mysql"], quick=chosen.quick
        )
        print(sleeping.table(slept))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
