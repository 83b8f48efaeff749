"""What an installation brings, besides the checkout that the other tests run in."""

import json
import os
import subprocess
import sys
import sysconfig
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
    assert _is_found(tmp_path, PYTHONPATH=str(tmp_path / "site"))


def test_an_editable_install_registers_it_outside_of_the_checkout(tmp_path: Path) -> None:
    """As this environment has it; Spark looks in folders, where an import hook alone is not seen."""
    (described,) = Path(sysconfig.get_path("purelib")).glob("emsworker-*.dist-info/direct_url.json")
    assert json.loads(described.read_text())["dir_info"]["editable"]
    assert _is_found(tmp_path)


def _is_found(folder: Path, **environment: str) -> bool:
    environment = {**{name: value for name, value in os.environ.items() if name != "PYTHONPATH"}, **environment}
    done = subprocess.run(
        [sys.executable, "-c", _LOOKUP], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[0]) > 0
