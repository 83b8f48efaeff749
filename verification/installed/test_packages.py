"""What sdist and wheel hold."""

import os
from pathlib import Path

import pytest

from verification.installed import packages
from verification.installed.packages import build, copy, differences, held_by_wheel, library

IS_WHEEL = os.environ.get("EMS_TEST_WHEEL") == "1"


def test_a_file_that_is_missing_added_or_changed_is_named() -> None:
    wanted = {"emsworker/a.sql": b"1", "cli/main.py": b"2", "tests/x.py": b"3", "setup.cfg": b"4"}
    found = {"emsworker/cli/main.py": b"0", "emsworker/old.py": b""}
    assert differences("it", library(wanted), found) == [
        "it has another emsworker/cli/main.py than git",
        "it has emsworker/old.py, which git does not",
        "it lacks emsworker/a.sql",
    ]
    assert differences("it", wanted, {**wanted, "setup.cfg": b"4 and more"}) == []


@pytest.mark.skipif(IS_WHEEL, reason="there are no sources")
def test_a_wheel_holds_the_data_files_and_nothing_of_earlier_builds(tmp_path: Path) -> None:
    """A folder of data need be no package, and what was deleted since the last build is gone."""
    files = packages.tracked()
    source = copy(files, tmp_path / "source")
    for name in ("emsworker/gone.py", "emsworker/store/gone.sql"):
        stale = source / "build" / "lib" / name
        stale.parent.mkdir(parents=True, exist_ok=True)
        stale.write_text("")
    found = held_by_wheel(build("wheel", source, tmp_path / "wheel"))
    assert differences("the wheel", library(files), found) == []
    assert "emsworker/store/engine/migrations/0001_core.sql" in found
