"""``./dev picture``: draws docs/img/killed.svg, a moving picture of a worker that is killed, from a run of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import pymysql

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.local import LocalDatabase

Ledger: TypeAlias = "pymysql.Connection[pymysql.cursors.Cursor]"

PICTURE = Path(__file__).parent / "img" / "killed.svg"
_APP = """
import os, time
from emsworker import Ems

app = Ems("shop")
worker = os.environ["WORKER"]


@app.subscribe("orders", group="ledger", transactional=True)
def book(transaction, message):
    with open("started", "a") as file:
        file.write(f"{message.body} {worker} {time.time()}\\n")
    transaction.execute("INSERT INTO ledger VALUES (%s, %s, NOW(6))", (message.body, worker))
    time.sleep(0.1)  # what the order takes
"""
_ORDERS, _THREADS, _KILL_AT, _DEADLINE_S = 480, 2, 100, 120.0


@dataclass(frozen=True)
class Run:
    """What was seen of a run; times are in seconds since its first order was started.

    Args:
        booked: for each order the worker whose transaction was committed, and when it began it.
        killed_s: when the first worker was killed.
        torn: the orders that it was booking then.
        lease_s: for how long its leases lasted.
    """

    booked: tuple[tuple[str, float], ...]
    killed_s: float
    torn: frozenset[int]
    lease_s: float

    @property
    def end_s(self) -> float:
        """When the last order was begun."""
        return max(at for _, at in self.booked)


def record(url: str, folder: Path, orders: int, kill_at: int, settings: Mapping[str, str]) -> Run:
    """Let two workers book orders, kill one with `kill -9`, and wait until every order is booked.

    Args:
        url: of an empty database; the tables are created in it.
        folder: an empty one for the app.
        orders: how many are sent.
        kill_at: after how many booked orders the worker is killed.
        settings: variables of the workers, such as ``EMS_LEASE_S``.

    Raises:
        SystemExit: an order is not booked exactly once.
    """
    (folder / "app.py").write_text(_APP)
    (folder / "started").touch()
    _prepare(url, orders)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
    environ |= {"EMS_URL": url, **settings}
    with (
        _connect(url) as ledger,
        _worker(folder, environ | {"WORKER": "A"}) as victim,
        _worker(folder, environ | {"WORKER": "B"}),
    ):
        _wait_for(ledger, kill_at)
        os.killpg(victim.pid, signal.SIGKILL)
        killed_at = time.time()
        victim.wait()
        _wait_for(ledger, orders)
        return _seen(_rows(ledger), (folder / "started").read_text(), killed_at, float(settings["EMS_LEASE_S"]))


def _prepare(url: str, orders: int) -> None:
    command = [sys.executable, "-m", "emsworker", "migrate", "--url", url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with _connect(url) as ledger, ledger.cursor() as cursor:
        cursor.execute("CREATE TABLE ledger (id INT, worker CHAR(1), at DATETIME(6))")
    with closing(Ems("shop", url=url)) as app:
        Admin(app).create_topic("orders", partitions=4)
        Admin(app).create_group("orders", "ledger")
        app.send_many("orders", range(orders))


def _connect(url: str) -> Ledger:
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 3306, user=parts.username, password=parts.password or "",
        database=parts.path.lstrip("/"), autocommit=True,
    )  # fmt: skip


@contextmanager
def _worker(folder: Path, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "emsworker", "worker", "-A", "app", "-p", "1", "-t", str(_THREADS)]
    with (folder / f"worker-{environ['WORKER']}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=dict(environ), stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(_DEADLINE_S)


def _rows(ledger: Ledger) -> list[tuple[int, str]]:
    with ledger.cursor() as cursor:
        cursor.execute("SELECT id, worker FROM ledger")
        return list(cursor.fetchall())


def _wait_for(ledger: Ledger, count: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while len(_rows(ledger)) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(_rows(ledger))} of {count} orders are booked after {_DEADLINE_S:g} s")
        time.sleep(0.02)


def _seen(rows: list[tuple[int, str]], started: str, killed_at: float, lease_s: float) -> Run:
    """Bring together what the ledger holds and when the handlers began."""
    if wrong := [order for order, times in Counter(order for order, _ in rows).items() if times != 1]:
        raise SystemExit(f"orders {wrong} are booked more than once")
    began = [(int(order), worker, float(at)) for order, worker, at in map(str.split, started.splitlines())]
    first = min(at for _, _, at in began)
    last = {(order, worker): at - first for order, worker, at in began}
    worker_of = dict(rows)
    torn = {order for order, worker, _ in began if worker == "A" and worker_of[order] != "A"}
    booked = tuple((worker_of[order], last[order, worker_of[order]]) for order in sorted(worker_of))
    return Run(booked, killed_at - first, frozenset(torn), lease_s)


# --- the picture ---------------------------------------------------------------------------------------------------

_SPEED, _REST_S, _COLUMNS, _STEP = 2.0, 4.0, 60, 14
_WAITS, _TORN, _BY = "#9aa6b4", "#d2453f", {"A": "#2f6fb0", "B": "#3a9459"}
_STYLE = """
text { font: 15px system-ui, sans-serif; fill: #1d2733 } .small { font-size: 13px; fill: #4b5a6b }
.line { stroke: #8a94a3; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #e6ebf1 } .small { fill: #a9b6c5 } }
"""


def draw(run: Run) -> str:
    """The picture: a square for each order, in the color of the worker that has booked it."""
    movie = _Movie(run.end_s / _SPEED + _REST_S)
    rows = -(-len(run.booked) // _COLUMNS)
    below = 60 + rows * _STEP
    parts = [movie.square(index, run) for index in range(len(run.booked))]
    parts += [movie.text(text, begin, end) for text, begin, end in _captions(run, movie.length_s)]
    parts += _legend(below + 24)
    parts += _time(run, movie, below + 52)
    title = f"{len(run.booked)} orders are booked by two workers; one is killed; each order is booked once"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_COLUMNS * _STEP + 40} {below + 84}" role="img" '
        f'aria-label="{title}">\n<style>{_STYLE}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


@dataclass(frozen=True)
class _Movie:
    """The time of the picture, which begins anew at its end.

    Args:
        length_s: how long it lasts.
    """

    length_s: float

    def _changes(self, name: str, values: list[tuple[float, str]]) -> str:
        """An attribute with these values from these seconds on."""
        times = ";".join(f"{min(at / self.length_s, 1):.4f}".rstrip("0").rstrip(".") or "0" for at, _ in values)
        told = ";".join(value for _, value in values)
        return (
            f'<animate attributeName="{name}" calcMode="discrete" dur="{self.length_s:.2f}s" '
            f'repeatCount="indefinite" keyTimes="{times}" values="{told}"/>'
        )

    def square(self, index: int, run: Run) -> str:
        """An order."""
        worker, began_s = run.booked[index]
        colors = [(0.0, _WAITS)]
        if index in run.torn:
            colors.append((run.killed_s / _SPEED, _TORN))
        colors.append((max(began_s / _SPEED, 0.001), _BY[worker]))
        x, y = 20 + index % _COLUMNS * _STEP, 50 + index // _COLUMNS * _STEP
        return (
            f'<rect x="{x}" y="{y}" width="11" height="11" fill="{_BY[worker]}">{self._changes("fill", colors)}</rect>'
        )

    def text(self, text: str, begin_s: float, end_s: float) -> str:
        """A caption that is shown for a while; without animation the last one is."""
        steps = [(0.0, "visible" if begin_s == 0 else "hidden"), (begin_s, "visible"), (end_s, "hidden")]
        kept = [step for step in steps[begin_s == 0 :] if step[0] < self.length_s]
        shown = "visible" if end_s >= self.length_s else "hidden"
        return f'<text x="20" y="30" visibility="{shown}">{text}{self._changes("visibility", kept)}</text>'


def _captions(run: Run, length_s: float) -> list[tuple[str, float, float]]:
    count, torn = len(run.booked), len(run.torn)
    killed, over, done = (at / _SPEED for at in (run.killed_s, run.killed_s + run.lease_s, run.end_s))
    return [
        (f"Two workers book {count} orders: each order is one transaction, with its acknowledgement.", 0.0, killed),
        (f"kill -9 of worker A: the {torn} orders that it was booking are rolled back.", killed, over),
        ("The lease of worker A is over: worker B takes what A had claimed.", over, done),
        (f"{count} orders sent, {count} booked, each of them once.", done, length_s),
    ]


def _legend(y: int) -> list[str]:
    entries = [
        ("waits", _WAITS),
        ("booked by worker A", _BY["A"]),
        ("booked by worker B", _BY["B"]),
        ("rolled back", _TORN),
    ]
    return [
        f'<rect x="{20 + 190 * place}" y="{y - 11}" width="11" height="11" fill="{color}"/>'
        f'<text class="small" x="{38 + 190 * place}" y="{y}">{name}</text>'
        for place, (name, color) in enumerate(entries)
    ]


def _time(run: Run, movie: _Movie, y: int) -> list[str]:
    width = _COLUMNS * _STEP - 3
    marks = [
        (0.0, "0 s", "start"),
        (run.killed_s, "kill -9", "start"),
        (run.killed_s + run.lease_s, f"lease over, {run.lease_s:g} s later", "end"),
        (run.end_s, f"{run.end_s:.0f} s: all booked", "start"),
    ]
    found = [f'<path class="line" d="M20 {y}H{20 + width}"/>']
    for at_s, text, anchor in marks:
        x = round(20 + width * at_s / _SPEED / movie.length_s)
        found.append(f'<path class="line" d="M{x} {y - 5}v10"/>')
        found.append(f'<text class="small" x="{x}" y="{y + 22}" text-anchor="{anchor}">{text}</text>')
    found.append(
        f'<circle cx="20" cy="{y}" r="5" fill="{_BY["B"]}"><animate attributeName="cx" dur="{movie.length_s:.2f}s" '
        f'repeatCount="indefinite" values="20;{20 + width}"/></circle>'
    )
    return found


def main() -> None:
    """Record a run and draw it."""
    with tempfile.TemporaryDirectory(prefix="ems-picture-") as name:
        folder = Path(name) / "app"
        folder.mkdir()
        database = LocalDatabase(Path(name) / "database")
        database.start()
        try:
            run = record(database.url, folder, _ORDERS, _KILL_AT, {"EMS_LEASE_S": "15"})
        finally:
            database.stop()
    PICTURE.write_text(draw(run), encoding="utf-8")
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes, {run.end_s:.0f} s, {len(run.torn)} orders rolled back")


if __name__ == "__main__":
    main()
