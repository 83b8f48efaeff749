"""Web servers of tests, and what asks them."""

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from emsworker.local.ports import free_port
from tests.docs.snippets import ROOT, blocks
from tests.support.waiting import until


def write_files(page: str, folder: Path) -> None:
    """Write the Python files that a page of the documentation titles, so that what is tested is what it shows."""
    for block in blocks(ROOT / "docs" / page):
        if block.language == "python" and block.title.endswith(".py"):
            (folder / block.title).write_text(block.text, encoding="utf-8")


@contextmanager
def served(command: list[str], folder: Path, url: str) -> Iterator[int]:
    """Run a web server from a folder, and yield its port; ``PORT`` in the command stands for it."""
    port, log = free_port(), folder / "web.log"
    command = [sys.executable, "-m", *(word.replace("PORT", str(port)) for word in command)]
    environment = {**os.environ, "EMS_URL": url, "HOME": str(folder), "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out)

        def answers() -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        try:
            until(answers, 60, "the web server answers")
            yield port
        finally:
            process.terminate()
            process.wait(60)


def ask(port: int, path: str, body: Any = None) -> tuple[int, Any]:
    """Get a path, or post a body to it, and return the status and the answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=120)) as client:
        if body is None:
            client.request("GET", path)
        else:
            client.request("POST", path, json.dumps(body), {"content-type": "application/json"})
        answer = client.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if answer.status < 300 else text.decode()
