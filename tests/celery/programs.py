"""Programs of Celery on a small application of a test, and what is left in their queues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from queue import Empty
from typing import Any

from celery import Celery

from tests.support.waiting import until
from tests.support.worker import ROOT


class Programs:
    """Starts ``celery -A module ...``, each in a process group of its own; those that are left end with the block.

    Args:
        folder: for the module and the logs.
        module: the name of the application's module.
        text: the module; the address of its stream is the variable ``STREAM``.
        stream: that address.
    """

    def __init__(self, folder: Path, module: str, text: str, stream: str) -> None:
        self._folder, self._module = folder, module
        (folder / f"{module}.py").write_text(text)
        self._environ = os.environ | {"STREAM": stream, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Programs:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._started:
            self.kill(process)

    def start(self, command: str, *options: str) -> subprocess.Popen[bytes]:
        """Start ``celery worker`` or ``celery beat``; ``{number}`` in an option counts the programs."""
        number = len(self._started)
        given = [option.format(number=number) for option in options]
        with (self._folder / f"{number}.log").open("w") as log:
            self._started.append(
                subprocess.Popen(
                    [sys.executable, "-m", "celery", "-A", self._module, command, *given],
                    env=self._environ,
                    cwd=self._folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        return self._started[-1]

    @staticmethod
    def kill(process: subprocess.Popen[bytes]) -> None:
        """Kill -9 of a program and its children."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def take_all(app: Celery, queue: str) -> list[Any]:
    """Take all messages of a queue, of which nobody else consumes or has any in hand; returns their payloads."""
    found: list[Any] = []
    with app.connection_for_read() as connection, connection.SimpleQueue(queue) as messages:

        def is_empty() -> bool:
            try:
                message = messages.get(timeout=0.2)
            except Empty:  # the end, or what a program that was killed has left open delays the next one
                # What was claimed for this program may not have reached it yet, on a busy machine.
                return not messages.qsize() and not len(messages.channel._pull._in_hand)
            found.append(message.payload)
            message.ack()
            return False

        until(is_empty, 60, f"the queue {queue} is empty", poll_s=0)
    return found
