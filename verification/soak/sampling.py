"""What is measured again and again while a soak goes on."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pymysql

from tests.support.looker import Looker
from verification.soak.arena import SoakArena, iter_roles
from verification.soak.series import Series

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1 << 20
_HISTORY = "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"
_CLAIMED = """
SELECT TIMESTAMPDIFF(MICROSECOND, m.born_at, c.claimed_at) / 1000 FROM ems_claim c JOIN ems_group g ON g.id = c.group_id
JOIN ems_message m ON m.topic_id = g.topic_id AND m.`partition` = c.`partition` AND m.`offset` = c.lo
WHERE c.source = 'stream' AND c.client_id IS NOT NULL AND c.claimed_at > UTC_TIMESTAMP(6) - INTERVAL %s SECOND ORDER BY
1
"""
_BACKLOG = """
SELECT COALESCE(SUM(w.behind), 0) FROM (SELECT (SELECT COALESCE(MAX(m.`offset`), 0) FROM ems_message m
WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`) + 1 - c.next_offset AS behind
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id) w WHERE w.behind > 0
"""
_HIT = "hit "


class Sampler:
    """Takes samples in a thread of its own.

    Args:
        arena: whose; every_s: how often.
        remembered: how much the checker holds.
    """

    def __init__(self, arena: SoakArena, every_s: float, remembered: Callable[[], int]) -> None:
        self._arena, self._every_s, self._remembered = arena, every_s, remembered
        self._name = arena.url.rsplit("/", 1)[1]
        # The administrator's connection is not among those that are cut, and sees all of them.
        self._looker = Looker(arena.server.admin_url.rsplit("/", 1)[0] + f"/{self._name}")
        self._tables: list[str] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._go)
        self.series: dict[str, Series] = {}
        self.missed = 0
        self.error: BaseException | None = None

    def __enter__(self) -> "Sampler":
        self._tables = [row[0] for row in self._looker.rows("SHOW TABLES LIKE 'ems\\_%%'")]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._looker.close()

    def _go(self) -> None:
        try:
            while not self._stopping.wait(self._every_s):
                self._sample()
        except BaseException as error:
            self.error = error  # told at the end: a soak that does not look is none

    def _sample(self) -> None:
        now = time.monotonic()
        self._add_all(now, self._of_processes())
        try:
            found = list(self._of_database())
        except pymysql.err.MySQLError:  # it is away: that is one of the faults
            self.missed += 1
        else:
            self._add_all(now, found)

    def _add_all(
        self, now: float, samples: Iterator[tuple[str, float, object]] | list[tuple[str, float, object]]
    ) -> None:
        for name, value, who in samples:
            judged = _HIT not in name and not name.endswith("server")
            self.series.setdefault(name, Series(name, judged)).add(now, value, who)

    def _of_processes(self) -> Iterator[tuple[str, float, object]]:
        for role, pids in iter_roles(self._arena):
            try:
                figures = [_process(pid) for pid in pids]
            except OSError:
                continue  # it has just ended
            if figures:
                rss, files, threads = (sum(column) for column in zip(*figures, strict=True))
                yield f"rss {role}", rss * _PAGE / _MIB, tuple(pids)
                yield f"files {role}", files, tuple(pids)
                yield f"threads {role}", threads, tuple(pids)
        yield "checker remembers", self._remembered(), None

    def _of_database(self) -> Iterator[tuple[str, float, object]]:
        rows = self._looker.rows
        counted = " UNION ALL ".join(f"SELECT '{table}', COUNT(*) FROM {table}" for table in self._tables)
        for table, count in rows(counted):
            yield f"rows {table}", int(count), None
            yield f"bytes {table}", self._bytes(table) / _MIB, None
        open_now = rows("SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s", self._name)
        yield "connections", int(open_now[0][0]), None
        yield "history list", int(rows(_HISTORY)[0][0]), None
        yield "backlog", int(rows(_BACKLOG)[0][0]), None
        waits = [float(row[0]) for row in rows(_CLAIMED, max(1.0, self._every_s))]
        if waits:
            yield "claim latency, median", waits[len(waits) // 2], None
            yield "claim latency, 99%", waits[len(waits) * 99 // 100], None

    def _bytes(self, table: str) -> int:
        """Of the table's file: what the server's own statistics say is an estimate."""
        return (self._arena.server.folder / "data" / self._name / f"{table}.ibd").stat().st_size


def _process(pid: int) -> tuple[int, int, int]:
    """Resident pages, open files, threads."""
    folder = Path(f"/proc/{pid}")
    pages = int((folder / "statm").read_text().split()[1])
    return pages, sum(1 for _ in (folder / "fd").iterdir()), sum(1 for _ in (folder / "task").iterdir())
