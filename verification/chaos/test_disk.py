"""The disk of the server is full for a while (EMS_TEST_LONG=1; ``./dev chaos --only "disk full"`` is the same)."""

import os
from pathlib import Path

import pytest

from emsworker.local import LocalDatabase
from verification.chaos import table
from verification.chaos.running import run_scenarios
from verification.chaos.scenarios import SCENARIOS
from verification.chaos.sites import CannotMount

pytestmark = [pytest.mark.few, pytest.mark.chaos]


@pytest.mark.skipif(os.environ.get("EMS_TEST_LONG") != "1", reason="20 s: set EMS_TEST_LONG=1")
def test_nothing_is_lost_when_the_disk_is_full(server: LocalDatabase, tmp_path: Path) -> None:
    scenario = next(one for one in SCENARIOS if one.name == "disk full")
    try:
        rows = list(run_scenarios([scenario], server, None, tmp_path / "arena", seed=1))
    except CannotMount as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    for row in rows:
        assert row.good, f"{table.line(row)}\n{row.wrong}"
