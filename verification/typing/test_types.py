"""What type checkers know of tasks: what is right passes, and each planted mistake is found, and nothing else."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import emsworker

_HERE = Path(__file__).parent
_LIBRARY = Path(emsworker.__file__).parents[1]  # the checkers do not know of editable installations
_FOUND = re.compile(r"^.*?(\w+\.py):(\d+)(?::\d+ -|:) error:? (.*)$", re.MULTILINE)


def _mypy(file: Path) -> list[str]:
    return ["mypy", "--strict", "--follow-imports=silent", "--hide-error-context", str(file)]


def _pyright(file: Path) -> list[str]:
    config = {"include": [file.name], "extraPaths": [str(_LIBRARY)]}
    Path("pyrightconfig.json").write_text(json.dumps(config))
    return ["pyright", "--pythonpath", sys.executable]


@pytest.mark.parametrize("checker", [_mypy, _pyright])
def test_what_is_right_passes_and_each_mistake_is_found(
    checker: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the project's own configuration does not hold
    if _LIBRARY.name != "site-packages":
        monkeypatch.setenv("MYPYPATH", str(_LIBRARY))
    mistakes = _HERE / "mistakes.py"
    planted = [n for n, line in enumerate(mistakes.read_text().splitlines(), 1) if line.endswith("# mistake")]
    for file, expected in ((_HERE / "correct.py", []), (mistakes, planted)):
        command = [sys.executable, "-m", *checker(Path(shutil.copy(file, tmp_path)))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == bool(expected), done.stdout + done.stderr
        found = {int(line) for name, line, _ in _FOUND.findall(done.stdout) if name == file.name}
        assert sorted(found) == expected, done.stdout
