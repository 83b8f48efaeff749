"""``--reload``: restarts a worker's children when a Python file changes. For development."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from emsworker.core.process import forks

log = logging.getLogger(__name__)

_QUIET_S = 0.3
_JOIN_S = 5.0
_CHANGES = frozenset({"modified", "created", "moved", "deleted"})
_OTHERS_CODE = frozenset({"node_modules", "site-packages", "__pycache__"})


class Reloader:
    """Watches folders, and reports a change of their Python files once nothing has changed for a moment.

    Args:
        folders: watched with their subfolders, except hidden ones, virtual environments and the like.
        on_change: called from a thread of the reloader with the file that changed last.
        quiet_s: seconds without a change before that, so that saving ten files is one change.
    """

    def __init__(self, folders: Iterable[Path], on_change: Callable[[Path], None], quiet_s: float = _QUIET_S) -> None:
        from watchdog.observers import Observer

        self._on_change = on_change
        self._quiet_s = quiet_s
        self._mutex = forks.Lock()
        self._timer: threading.Timer | None = None
        self._observer = Observer()
        handler: Any = _Handler(self._note)  # its base class would have to be imported with this module
        for folder, deep in sorted(_watches(folders)):
            self._observer.schedule(handler, str(folder), recursive=deep)

    def start(self) -> None:
        """Begin to watch."""
        self._observer.start()

    def stop(self) -> None:
        """Stop; a change that has not been reported yet is dropped."""
        self._observer.stop()
        self._observer.join(_JOIN_S)
        with self._mutex:
            if self._timer is not None:
                self._timer.cancel()

    def _note(self, path: Path) -> None:
        with self._mutex:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = threading.Timer(self._quiet_s, self._tell, [path])
            self._timer.daemon = True
            self._timer.start()

    def _tell(self, path: Path) -> None:
        log.info("%s has changed", path)
        self._on_change(path)


class _Handler:
    """The event handler that watchdog calls."""

    def __init__(self, note: Callable[[Path], None]) -> None:
        self._note = note

    def dispatch(self, event: Any) -> None:
        """Keep only changes of source files: reading a file is an event too."""
        if event.event_type not in _CHANGES:
            return
        for name in (event.src_path, getattr(event, "dest_path", "")):
            path = Path(str(name))
            if path.suffix == ".py":
                self._note(path)
                return


def _watches(folders: Iterable[Path]) -> set[tuple[Path, bool]]:
    """Each folder itself, and its own subfolders with everything below them."""
    roots = {folder.resolve() for folder in folders}
    watches = {(root, False) for root in roots}
    for root in roots:
        watches |= {(folder, True) for folder in _subfolders(root)}
    return watches


def _subfolders(root: Path) -> Iterator[Path]:
    for folder in root.iterdir():
        is_ours = not folder.name.startswith(".") and folder.name not in _OTHERS_CODE
        if folder.is_dir() and is_ours and not (folder / "pyvenv.cfg").exists():
            yield folder
