"""A line of JSON in, what is to be measured; a line of JSON out, the seconds that it took. It ends with its input."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping

Work = Callable[[int, int], object]


def answer(lines: Mapping[str, Work]) -> None:
    """Answer until the input ends; each question is ``[line, flows, size]``."""
    print(json.dumps("ready"), flush=True)
    for text in sys.stdin:
        name, flows, size = json.loads(text)
        began = time.perf_counter()
        found = lines[name](flows, size)
        took_s = time.perf_counter() - began
        if found != flows * size:
            raise SystemExit(f"{name}: {flows} flows of {size} gave {found}")
        print(json.dumps(took_s), flush=True)
