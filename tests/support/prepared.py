"""Private database servers whose data folders are copies of one that was initialized once, which takes seconds each time.

The folder is kept beside what `./dev` unpacks, for the next test process and the next run.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path

from emsworker.local import LocalDatabase

_KEPT = Path(os.environ.get("EMS_CACHE_DIR") or Path.home() / ".cache" / "ems") / "initialized"


class PreparedDatabase(LocalDatabase):
    """Private server that begins with a copy; its accounts are made at its start, as those of any other."""

    def _initialize(self, timeout_s: float) -> None:
        kept = _KEPT / f"{self.flavor}-{self._origin()}"
        if kept.is_dir():
            partial = self.folder / "data.partial"
            shutil.rmtree(partial, ignore_errors=True)
            shutil.copytree(kept, partial)
            partial.rename(self._data)
        else:
            super()._initialize(timeout_s)
            _keep(self._data, kept)
        # MySQL's own number, which no two servers of a replication may share; the start makes a new one.
        (self._data / "auto.cnf").unlink(missing_ok=True)

    def _origin(self) -> str:
        """Return a short text that differs if the program, its version or what it is told then does."""
        command = [*self._engine.initialize_command(Path("data")), *self._lasting_options()]
        files = [path for part in command if (path := Path(part)).is_file()]
        facts = [self._engine.version, *command, *(str(path.stat().st_mtime_ns) for path in files)]
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()[:16]


def _keep(data: Path, kept: Path) -> None:
    """Keep a copy, in one step; if another process was faster, its copy stays."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_name(f"{kept.name}-{os.getpid()}")
    shutil.copytree(data, partial)
    with suppress(OSError):
        partial.rename(kept)
    shutil.rmtree(partial, ignore_errors=True)
