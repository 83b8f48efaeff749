"""Asks a short-lived process what an app is: its settings and what it handles.

The supervisor must not import task code, and yet ``Ems(url=..., processes=...)`` in that code counts. The process
answers over a pipe of its own, because importing an app may print anything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from emsworker.core.config import Settings
from emsworker.core.errors import AppNotFound, EmsError

_TIMEOUT_S = 120


@dataclass(frozen=True)
class AppFacts:
    """What an app says of itself.

    Args:
        name: of the app.
        settings: the app's own, with the environment's.
        routes: the topics and groups that it has handlers for.
        broadcasts: the topics whose broadcasts it listens to.
        folder: where the source code of its package lies.
    """

    name: str
    settings: Settings
    routes: tuple[tuple[str, str], ...]
    broadcasts: tuple[str, ...]
    folder: Path | None


def describe_app(path: str, environ: Mapping[str, str]) -> AppFacts:
    """Load an app elsewhere and return what it is.

    Args:
        path: what ``-A`` was given.
        environ: the environment to load it in.

    Raises:
        AppNotFound: it cannot be loaded, for whatever reason; in one line.
    """
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "emsworker.runtime.describe", path, str(writer)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=[writer],
        env=dict(environ),
    )
    os.close(writer)
    try:
        _, noise = process.communicate(timeout=_TIMEOUT_S)
        with os.fdopen(reader, encoding="utf-8") as answer:
            text = answer.read()
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise AppNotFound(f"-A {path}: importing it takes longer than {_TIMEOUT_S} s") from None
    if not text:
        last = noise.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise AppNotFound(f"-A {path}: importing it ended the process (exit code {process.returncode}): {last[0]}")
    return _read(json.loads(text))


def _read(answer: dict[str, Any]) -> AppFacts:
    if "error" in answer:
        raise AppNotFound(answer["error"])
    values = answer["settings"]
    given: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
    settings = Settings(**given)
    routes = tuple((topic, group) for topic, group in answer["routes"])
    folder = Path(answer["folder"]) if answer["folder"] else None
    return AppFacts(answer["name"], settings, routes, tuple(answer["broadcasts"]), folder)


def _describe(path: str) -> dict[str, Any]:
    from emsworker.loader import load_app

    try:
        app = load_app(path)
    except EmsError as error:
        return {"error": str(error)}
    module = sys.modules[path.partition(":")[0].partition(".")[0]]
    source = getattr(module, "__file__", None)
    folder = str(Path(source).resolve().parent) if source and hasattr(module, "__path__") else None
    facts = {"name": app.name, "settings": asdict(app.settings), "routes": sorted(app.routes), "folder": folder}
    return facts | {"broadcasts": sorted({route.topic for route in app.broadcasts.values()})}


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as the workers' children do it
    with os.fdopen(int(sys.argv[2]), "w", encoding="utf-8") as out:
        json.dump(_describe(sys.argv[1]), out)
        out.flush()
    os._exit(0)  # an app may have started threads
