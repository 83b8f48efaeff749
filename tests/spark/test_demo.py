"""``./dev demo-pipeline``, from end to end."""

import os
import subprocess
import sys

import pytest

from tests.spark.conftest import ROOT, spark_environment


@pytest.mark.skipif(not os.environ.get("EMS_TEST_LONG"), reason="the long form: EMS_TEST_LONG=1")
@pytest.mark.timeout(1800)
def test_every_figure_of_the_demo_is_what_pandas_computes() -> None:
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("EMS_") or name == "EMS_MYSQL_ROOT"
    }
    done = subprocess.run(
        [sys.executable, "-m", "sample_app.demo", "--pipeline", "--limit", "1000"],
        cwd=ROOT,
        env=plain | spark_environment(),
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert "figures of Spark's compared with pandas', 0 differences" in done.stdout
    assert "everything is equal" in done.stdout
