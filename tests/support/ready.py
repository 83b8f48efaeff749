"""``python -m tests.support.ready SOCKET``: processes that have imported ``ems`` already, each for one command.

Python takes most of the time of a command to start and to import. Here a process that has imported everything forks for
each command, which finds its own folder, environment and files, as if it had been started with ``python -m emsworker``.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

_MODULES = ("pymysql", "emsworker", "emsworker.cli.main", "emsworker.admin", "emsworker.app")


def serve(address: str) -> None:
    """Fork for each connection until the one that has started this is gone."""
    for name in _MODULES:
        import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        listener.settimeout(1)
        starter = os.getppid()
        while os.getppid() == starter:
            with suppress(TimeoutError):
                _take(listener)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


def _take(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    connection.settimeout(None)
    with connection:
        if os.fork() == 0:
            listener.close()
            os._exit(_answer(connection))


def _answer(connection: socket.socket) -> int:
    """Run one command in one more process, which may end in any way, and tell how it ended."""
    with connection, connection.makefile("rw") as stream:
        wanted = json.loads(stream.readline())
        pid = os.fork()
        if pid == 0:
            connection.close()
            os._exit(_run(wanted))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        stream.write(f"{code}\n")
    return 0


def _run(wanted: Mapping[str, Any]) -> int:
    """Be the process that was wanted; returns its exit code."""
    for number, name in enumerate(("in", "out", "err")):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if number else os.O_RDONLY
        os.dup2(os.open(wanted[name], flags, 0o600), number)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    sys.path[0] = str(Path.cwd())
    sys.argv = ["ems", *wanted["arguments"]]
    code: object = 0
    try:
        import_module("emsworker.__main__").main()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    serve(sys.argv[1])
