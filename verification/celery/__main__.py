"""``./dev test-celery``: the integration suites of kombu and Celery, unmodified, and then our tests with Celery."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.worker import ROOT
from verification.celery.sources import CELERY, KOMBU, installed, unpacked

# Tests of kombu's base classes: six, and one more since 5.7.
BASES = {"5.5.4": 40, "5.6.2": 40, "5.7.0": 47}
# What CI runs of Celery's suite, beside kombu's: all of it takes half an hour of one process.
BOUNDED = (
    "t/integration/test_canvas.py::test_chain::test_complex_chain",
    "t/integration/test_canvas.py::test_group::test_parent_ids",
    "t/integration/test_canvas.py::test_chord::test_simple_chord_with_a_delay_in_group_save",
    "t/integration/test_tasks.py::test_class_based_tasks",
)
# What CI runs of ours on a Celery before the latest, in a minute: what depends most on Celery's insides, such as chords,
# whose methods have other arguments in each version. All modules are imported, so none lacks a package there.
OLDER = (
    "test_chords_send_their_body_once",
    "test_a_part_that_fails_fails_the_chord_once",
    "test_groups_are_saved_restored_joined_and_deleted",
    "test_tasks_report_their_progress_and_their_end",
    "test_every_object_of_a_task_gets_its_result",
    "test_ordinary_bodies_are_unpacked_once_and_keep_their_headers",
    "test_inspect_and_control_reach_every_worker",
    "test_one_of_several_leads_and_each_slot_is_sent_once",
    "test_celerys_own_scheduler_works_unchanged",
)
# It asks for a storage account of Azure when it is imported.
_IGNORED = ("--ignore", "t/integration/test_backend.py")
_PLUGIN = ("-p", "verification.celery.plugin")
# Of what 50 tasks have left, 0.1 MB, what 500 more may add. The leak that Celery's test is about was 70 kB a task; the
# share of 10 % that it takes by default is one of the whole process, which only psutil tells.
_LEAK_PERCENT = "1000"


@dataclass(frozen=True)
class Result:
    """How a suite ended.

    Args:
        name: of the suite.
        code: pytest's exit code.
        counts: what it counted, as in ``{"passed": 47}``.
        took_s: how long it took.
    """

    name: str
    code: int
    counts: dict[str, int]
    took_s: float

    def __str__(self) -> str:
        """One line."""
        counts = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        return f"{self.name}: {counts} in {self.took_s:.0f} s{'' if self.code == 0 else ': FAILED'}"


def _pytest(name: str, folder: Path, broker: str, arguments: Sequence[str]) -> Result:
    env = os.environ | {
        "SUITE_BROKER": broker,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "EMS_TEST_CELERY": "1",
        "MEMORY_LEAK_THRESHOLD_PERCENT": _LEAK_PERCENT,
    }
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        last = line if re.search(r" in [\d.]+s", line) else last
    counts = {what: int(count) for count, what in re.findall(r"(\d+) (\w+)", last.partition(" in ")[0])}
    return Result(name, process.wait(), counts, time.monotonic() - began)


def _is_latest() -> bool:
    return installed(CELERY) == CELERY[-1]


def kombu_bases(broker: str, arguments: Sequence[str]) -> Result:
    """Kombu's base classes; all of them must have run."""
    module = ROOT / "verification" / "celery" / "kombu_bases.py"
    kombu = installed(KOMBU)
    found = _pytest("kombu's bases", unpacked(kombu), broker, [*_PLUGIN, "-q", "-rfE", *arguments, str(module)])
    ran = sum(count for what, count in found.counts.items() if what in ("passed", "xfailed", "skipped", "failed"))
    if not arguments and ran != BASES[kombu.version]:
        print(f"kombu's bases: {ran} tests ran, expected {BASES[kombu.version]}")
        return Result(found.name, found.code or 1, found.counts, found.took_s)
    return found


def _with_workers_of_their_own(folder: Path) -> list[str]:
    """Names of modules that start a worker in their process, whose end stops that of the suite for all later tests."""
    modules = sorted((folder / "t" / "integration").glob("test_*.py"))
    return [one.name for one in modules if "import start_worker" in one.read_text(encoding="utf-8")]


def celery_suite(broker: str, processes: int, arguments: Sequence[str], *, everything: bool) -> Result:
    """Celery's integration tests: all, or what CI runs."""
    named = any(one.startswith("t/") for one in arguments)
    chosen = arguments if named else (*arguments, *(("t/integration",) if everything else BOUNDED))
    if not (named or everything or _is_latest()):
        processes = 1  # starting servers for more would take longer than these few tests
    # Each process has servers of its own, and a worker; most tests wait.
    several = ("-n", str(processes), "--dist", "load") if processes > 1 else ()
    options = [*_PLUGIN, "-p", "celery.contrib.pytest", "-q", "-rfEX", "--durations", "10", *_IGNORED, *several]
    folder = unpacked(installed(CELERY))
    if not named and not _is_latest():  # of the latest one module does, and is named
        options += [f"--ignore=t/integration/{name}" for name in _with_workers_of_their_own(folder)]
    return _pytest("Celery's suite", folder, broker, [*options, *chosen])


def our_tests(arguments: Sequence[str], *, everything: bool) -> Result:
    """The tests of this project that need Celery."""
    if everything:
        chosen = ("tests/celery",)
    elif _is_latest():
        chosen = ("tests/celery", "-m", "not slow", "-n", "3")
    else:
        chosen = ("tests/celery", "-k", " or ".join(OLDER), "-n", "2")
    return _pytest("our tests with Celery", ROOT, "ems", ["-q", *(arguments or (*chosen, "--durations", "10"))])


def beside_redis(arguments: Sequence[str]) -> Result:
    """The scenarios of chaos on EMS and on Redis: a table."""
    began = time.monotonic()
    command = [sys.executable, "-m", "verification.celery.beside", *arguments]
    code = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False).returncode
    return Result("chaos beside Redis", code, {}, time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev test-celery", description=__doc__)
    parser.add_argument("--long", action="store_true", help="everything; without it what CI runs")
    parser.add_argument(
        "--on",
        choices=("ems", "redis", "results"),
        default="ems",
        help="what the suites run on: results is Redis for messages alone (default ems)",
    )
    parser.add_argument(
        "--only", choices=("kombu", "celery", "ours", "beside"), help="one part; the rest goes to pytest"
    )
    parser.add_argument("-n", "--processes", type=int, default=3, help="of Celery's suite (default 3)")
    found, arguments = parser.parse_known_args()
    if arguments and not found.only:
        parser.error(f"{' '.join(arguments)}: which part gets this? Add --only kombu, celery, ours or beside")
    found.arguments = arguments
    return found


def main() -> int:
    """Run the parts, one after the other; 1 if one of them failed."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # by default the servers would be left behind
    chosen = _arguments()
    if chosen.long:
        os.environ["EMS_TEST_LONG"] = "1"
    parts = {
        "kombu": lambda: kombu_bases(chosen.on, chosen.arguments),
        "celery": lambda: celery_suite(chosen.on, chosen.processes, chosen.arguments, everything=chosen.long),
        "ours": lambda: our_tests(chosen.arguments, everything=chosen.long),
        "beside": lambda: beside_redis(chosen.arguments),
    }
    left_out = {"ours", "beside"} if chosen.on != "ems" else set() if chosen.long else {"beside"}
    if not chosen.long and not _is_latest():
        left_out.add("kombu")  # a minute, of which ours use what matters
    wanted = [chosen.only] if chosen.only else [name for name in parts if name not in left_out]
    results = [parts[name]() for name in wanted]
    print(*results, sep="\n")
    return int(any(result.code != 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
