"""What handlers did, appended to files that survive kill -9: one line a write, one file a process."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_files: dict[int, int] = {}


def note(event: str, **values: Any) -> None:
    """Append one event of this process."""
    pid = os.getpid()
    if pid not in _files:
        path = Path(os.environ["EMS_TEST_RECORD"]) / f"events-{pid}.jsonl"
        _files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    line = json.dumps({"event": event, "pid": pid, "at": time.monotonic(), **values})
    os.write(_files[pid], line.encode() + b"\n")


def whole_lines(path: Path) -> list[str]:
    """The lines of a record; the last one may be half written, where its process was killed or goes on just now."""
    return path.read_text().split("\n")[:-1]


@dataclass(frozen=True)
class Record:
    """Reads what :func:`note` wrote into a folder."""

    folder: Path

    def events(self, event: str | None = None, **wanted: Any) -> list[dict[str, Any]]:
        """All events, or those of a kind and with these values, by time."""
        found = []
        for path in self.folder.glob("events-*.jsonl"):
            found += [json.loads(line) for line in whole_lines(path)]
        wanted |= {"event": event} if event else {}
        chosen = [one for one in found if all(one.get(name) == value for name, value in wanted.items())]
        return sorted(chosen, key=lambda one: one["at"])

    def numbers(self, event: str = "end", **wanted: Any) -> list[int]:
        """The numbers ``n`` of such events, sorted, with repetitions."""
        return sorted(one["n"] for one in self.events(event, **wanted))
