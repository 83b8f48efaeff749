"""One producer of a constant load: ``python -m verification.soak.producer SEED RATE BODY_BYTES``, until SIGTERM."""

import random
import signal
import sys
import threading
import time

from emsworker.core.errors import EmsError
from verification.chaos.app import app
from verification.chaos.names import KEYS, TOPIC
from verification.soak.load import body

_THREADS, _BEHIND_S = 4, 1.0


def _send(seed: int, rate: float, body_bytes: int, stopping: threading.Event) -> None:
    """Send at set times. Who is far behind, because nobody took anything, does not catch up: the load is constant."""
    chance = random.Random(seed)
    due = time.monotonic() + chance.random() / rate
    while not stopping.wait(max(0.0, due - time.monotonic())):
        due = max(due + 1 / rate, time.monotonic() - _BEHIND_S)
        try:
            if chance.random() < 0.02:
                app.send(TOPIC, body(chance, body_bytes), countdown=0.2)
            else:
                app.send(TOPIC, body(chance, body_bytes), key=chance.choice(KEYS))
        except EmsError as error:
            print(f"not confirmed: {error!r}", file=sys.stderr, flush=True)


def main(seed: int, rate: float, body_bytes: int) -> None:
    """Send from several threads."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    threads = [
        threading.Thread(target=_send, args=(seed * 10 + n, rate / _THREADS, body_bytes, stopping))
        for n in range(_THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
