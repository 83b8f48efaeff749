"""Faults planted in the real code: each of them turns a test red."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from emsworker.core.model import Order
from tests.mutation.faults import FAULTS
from tests.mutation.planting import Fault, plant
from tests.property.byhand import StoreMachine
from tests.property.settings import SETTINGS
from tests.property.test_limits import LimitMachine
from tests.support.servers import chosen_flavors
from tests.support.streams import Stream

_LONG = bool(os.environ.get("EMS_TEST_LONG"))
_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/discussions/testing.md"
_SITE = Path(__file__).parent / "site"
_SETTINGS = settings(SETTINGS, derandomize=True, max_examples=400, stateful_step_count=50, phases=[Phase.generate])
_BY_PROPERTIES = [name for name, fault in FAULTS.items() if "::" not in fault.found_by]
_BY_TESTS = [name for name, fault in FAULTS.items() if "::" in fault.found_by]
"""How the oracle notices: something is not as expected, or what it was told cannot be."""
_NOTICED = (AssertionError, KeyError, StopIteration, FlakyFailure)


def _machine(stream: Stream, fault: Fault) -> RuleBasedStateMachine:
    return LimitMachine(stream) if fault.found_by == "limits" else StoreMachine(stream, Order(fault.found_by))


def test_the_page_has_the_table() -> None:
    page = _PAGE.read_text().partition("<!-- faults -->\n")[2].partition("<!-- /faults -->")[0]
    rows = "".join(f"| {name} | {fault.what} | {fault.finder} |\n" for name, fault in FAULTS.items())
    assert page == f"| fault | what it does | found by |\n| --- | --- | --- |\n{rows}"


@pytest.mark.parametrize("name", _BY_PROPERTIES)
def test_the_property_tests_find(stream: Stream, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fault, began = FAULTS[name], time.monotonic()
    plant(fault, monkeypatch.setattr)
    with pytest.raises(_NOTICED) as found:
        run_state_machine_as_test(lambda: _machine(stream, fault), settings=_SETTINGS)
    lines = [line for line in str(found.value).splitlines() if line.strip()] or [repr(found.value)]
    print(
        f"FOUND {name} | {fault.what} | properties, {fault.found_by} | {time.monotonic() - began:.1f} s | {lines[0][:90]}"
    )


@pytest.mark.parametrize("name", _BY_TESTS)
def test_a_named_test_finds(name: str) -> None:
    """In processes of their own, on the first flavor."""
    fault, began = FAULTS[name], time.monotonic()
    environment = os.environ | {
        "PLANTED_FAULT": name,
        "PYTHONPATH": f"{_SITE}{os.pathsep}{_ROOT}",
        "EMS_TEST_SERVERS": f"{chosen_flavors()[0]},redis",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", fault.found_by]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 1, f"not found, or not run: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    reason = next((line for line in done.stdout.splitlines() if line.startswith("E  ")), "")
    assert reason and "mend the table" not in done.stdout
    print(
        f"FOUND {name} | {fault.what} | {fault.found_by} | {time.monotonic() - began:.1f} s | {reason[1:].strip()[:90]}"
    )
