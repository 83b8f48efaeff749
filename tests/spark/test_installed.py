"""What an installation brings, besides the checkout that the other tests run in."""

import os
import subprocess
import sys
from pathlib import Path

from tests.spark.conftest import ROOT

_LOOKUP = """
import io, sys
from pyspark.sql.worker.lookup_data_sources import _main
out = io.BytesIO()
_main(io.BytesIO(), out)
print(out.getvalue().count(b"ems"), "pyarrow" in sys.modules)
"""


def test_installing_the_package_registers_the_format(tmp_path: Path) -> None:
    """Spark's own lookup finds it among the installed packages."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    copy = tmp_path / "source"
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    subprocess.run([*command, "--target", str(tmp_path / "site"), str(copy)], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", _LOOKUP], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 0
