"""Faults planted in the real code: each of them turns a test red."""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pymysql
import pytest
from hypothesis import Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from emsworker.core.model import Order
from tests.support.servers import chosen_flavors
from tests.support.streams import Stream
from verification.mutation.faults import FAULTS
from verification.mutation.planting import Fault, plant
from verification.property.byhand import StoreMachine
from verification.property.settings import SETTINGS
from verification.property.test_limits import LimitMachine

_LONG = bool(os.environ.get("EMS_TEST_LONG"))
_ROOT = Path(__file__).parents[2]
_PAGE = _ROOT / "docs/discussions/testing.md"
_SITE = Path(__file__).parent / "site"
_SETTINGS = settings(SETTINGS, derandomize=True, max_examples=400, stateful_step_count=50, phases=[Phase.generate])
_BY_PROPERTIES = [name for name, fault in FAULTS.items() if "::" not in fault.found_by]
_BY_TESTS = [name for name, fault in FAULTS.items() if "::" in fault.found_by]


"""How the oracle notices: something is not as expected, or what it was told cannot be."""
_NOTICED = (AssertionError, KeyError, StopIteration, FlakyFailure)
"""Those of the property tests that find theirs within a second; the others want ./dev mutants, as does one that waits."""
_QUICK = {
    *("acknowledged when claimed", "cursor moved too far", "hole never closed", "skipped in silence"),
    *("slots not counted", "permits not spent"),
}
_SLOW = {"cursor not locked"}


def _chosen(names: list[str], short: Callable[[str], bool]) -> list[Any]:
    skip = pytest.mark.skipif(not _LONG, reason="takes long: ./dev mutants")
    return [name if short(name) else pytest.param(name, marks=skip) for name in names]


def _is_simple(fault: Fault) -> bool:
    """Whether the test that finds it needs nothing but a stream, and no other process."""
    path, name = fault.found_by.split("::")
    text = (_ROOT / path).read_text()
    alone = "processes" not in name and "/process/" not in path and "autouse" not in text
    return alone and f"def {name}(stream: Stream) -> None:" in text


def _machine(stream: Stream, fault: Fault) -> RuleBasedStateMachine:
    return LimitMachine(stream) if fault.found_by == "limits" else StoreMachine(stream, Order(fault.found_by))


def test_the_page_has_the_table() -> None:
    page = _PAGE.read_text().partition("<!-- faults -->\n")[2].partition("<!-- /faults -->")[0]
    rows = "".join(f"| {name} | {fault.what} | {fault.finder} |\n" for name, fault in FAULTS.items())
    assert page == f"| fault | what it does | found by |\n| --- | --- | --- |\n{rows}"


@pytest.mark.parametrize("name", FAULTS)
def test_each_is_a_change_of_code_that_is_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    plant(FAULTS[name], monkeypatch.setattr)


@pytest.mark.parametrize("name", _chosen(_BY_PROPERTIES, _QUICK.__contains__))
def test_the_property_tests_find(stream: Stream, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fault, began = FAULTS[name], time.monotonic()
    plant(fault, monkeypatch.setattr)
    with pytest.raises(_NOTICED) as found:
        run_state_machine_as_test(lambda: _machine(stream, fault), settings=_SETTINGS)
    _tell(name, began, found.value)


def _test_of(fault: Fault) -> Callable[..., None]:
    path, name = fault.found_by.split("::")
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    test: Callable[..., None] = getattr(module, name)
    return test


@pytest.mark.parametrize("name", _chosen([n for n in _BY_TESTS if _is_simple(FAULTS[n])], lambda n: n not in _SLOW))
def test_another_test_finds(stream: Stream, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fault, began = FAULTS[name], time.monotonic()
    test = _test_of(fault)
    plant(fault, monkeypatch.setattr)
    with pytest.raises((Exception, pytest.fail.Exception)) as found:
        test(stream)
    assert not isinstance(found.value, pymysql.err.ProgrammingError), "a fault that is no SQL shows nothing"
    _tell(name, began, found.value)


@pytest.mark.parametrize("name", _chosen([n for n in _BY_TESTS if not _is_simple(FAULTS[n])], lambda n: False))
def test_another_test_finds_in_processes_of_its_own(name: str) -> None:
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
    assert reason and "fix the table" not in done.stdout
    _tell(name, began, reason[1:].strip())


def _tell(name: str, began: float, reason: object) -> None:
    fault = FAULTS[name]
    first = next((line for line in str(reason).splitlines() if line.strip()), repr(reason))
    print(f"FOUND {name} | {fault.what} | {fault.finder} | {time.monotonic() - began:.1f} s | {first[:90]}")
