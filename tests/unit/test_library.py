"""The library that the tests run: that of the checkout, or with EMS_TEST_WHEEL=1 the installed wheel's."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.worker import LIBRARY, ROOT

IS_WHEEL = os.environ.get("EMS_TEST_WHEEL") == "1"


def test_the_tests_run_the_library_that_they_are_meant_to() -> None:
    """Also in a process that begins in the folder of the tests, where `python -m` looks first."""
    wanted = Path(sysconfig.get_path("purelib")) / "emsworker" if IS_WHEEL else ROOT / "emsworker"
    assert wanted == LIBRARY
    code = "import emsworker, emsworker.cli; print(emsworker.__path__[0], emsworker.cli.__path__[0], sep='\\n')"
    for folder in (ROOT, ROOT.parent):
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
        cli = LIBRARY / "cli" if IS_WHEEL else ROOT / "cli"
        assert done.stdout.splitlines() == [str(wanted), str(cli)]
    if IS_WHEEL:
        assert not any((ROOT / folder).exists() for folder in ("emsworker", "cli", "kombu_ems", "pyspark_ems"))
