"""The clock of a client machine that is wrong: on PYTHONPATH, it moves ``time.time()`` by what a file says.

libfaketime would move the clock of the C library, but it breaks ``time.sleep`` of Python 3.11 and later (EINVAL).
EMS itself asks for the date only there, to make ids and to measure how far the server's clock is off.
"""

import os
import time
from pathlib import Path

_FILE = Path(os.environ["EMS_TEST_CLOCK"])
_real, _real_ns = time.time, time.time_ns


def _ahead_s() -> int:
    return int(_FILE.read_text() or 0)


time.time = lambda: _real() + _ahead_s()
time.time_ns = lambda: _real_ns() + _ahead_s() * 10**9
