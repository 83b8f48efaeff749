"""A producer that forks while its threads send, as a web server does: each child sends for itself, and must come to an end.

Its threads send to many topics, which are looked up anew each second: there are always locks to be inherited.
"""

import os
import signal
import sys
import threading
import time
from typing import NoReturn

from emsworker.core.errors import EmsError
from verification.chaos.app import app
from verification.chaos.names import FORKED, KEYS, MANY, TOPIC

_CHILD_S = 20.0
_HUNG = 3


def _send(number: int) -> None:
    try:
        app.send(TOPIC, {"work_s": 0}, key=KEYS[number % len(KEYS)])
        app.send(TOPIC, {"work_s": 0}, countdown=0.05)
        app.send(f"{FORKED}-{number % MANY}", {})
    except EmsError as error:
        print(f"not confirmed: {error!r}", file=sys.stderr, flush=True)


def _keep_sending(number: int, stopping: threading.Event) -> None:
    while not stopping.wait(0.002):
        try:
            app.stream.catalog.topic(f"{FORKED}-{number % MANY}")
            if number % 5 == 0:
                _send(number)
        except EmsError as error:
            print(f"not confirmed: {error!r}", file=sys.stderr, flush=True)
        number += 1


def _child(number: int) -> NoReturn:
    code = 1
    try:
        _send(number)
        code = 0
    finally:
        os._exit(code)


def _has_ended(pid: int, deadline: float) -> bool:
    """Wait for a child; one that hangs is killed."""
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            assert os.waitstatus_to_exitcode(status) == 0, f"child {pid} ended with status {status}"
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


def main(count: int) -> int:
    """Fork so many children, a few at a time.

    Returns:
        the exit code: 3 if one of them hung.
    """
    _send(0)  # everything is open before the first fork, and is inherited
    stopping = threading.Event()
    threads = [threading.Thread(target=_keep_sending, args=(number, stopping)) for number in range(3)]
    for thread in threads:
        thread.start()
    hung = 0
    try:
        for number in range(0, count, 4):
            pids = []
            for one in range(number, min(number + 4, count)):
                pid = os.fork()
                if pid == 0:
                    _child(one)
                pids.append(pid)
            deadline = time.monotonic() + _CHILD_S
            hung += sum(not _has_ended(pid, deadline) for pid in pids)
            if hung:
                break
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    if hung:
        print(f"{hung} forked children hung", file=sys.stderr, flush=True)
        os._exit(_HUNG)
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
