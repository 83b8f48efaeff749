"""A producer that sends for later to the topic that is deleted and created again, until SIGTERM.

It sends nothing at once, which would tell it within milliseconds that the topic is another one.
"""

import contextlib
import signal
import sys
import threading

from emsworker.core.errors import EmsError
from verification.chaos.app import app
from verification.chaos.names import REBORN

_PAUSE_S = 0.02


def main() -> int:
    """Send; what fails is not confirmed."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    n = 0
    while not stopping.wait(_PAUSE_S):
        n += 1
        with contextlib.suppress(EmsError):
            app.send(REBORN, {"n": n}, countdown=(0.05, 0.3)[n % 2])
    app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
