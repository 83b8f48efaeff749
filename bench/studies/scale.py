"""More processes, more groups, more servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from subprocess import PIPE

from bench import worker
from bench.app import build
from bench.load import BODY
from bench.stage import NotRight, Stage
from bench.studies.backlog import extend, wait_done
from bench.studies.finding import Finding, Lab, Study
from bench.studies.shares import limited, used_s
from emsworker.core.counted import counted
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate

_PROCESSES, _GROUPS = (1, 2, 4), (1, 3, 10)
_SHARE, _SECONDS, _SENDERS = 0.3, 4.0, 20  # of a core; of sending; threads for each stream


def _backlog(stage: Stage, topic: str, count: int, body: object = BODY) -> tuple[int, int]:
    """A topic with so many more messages than one; the topic's id and the first new offset."""
    tasks = build(url=stage.url)
    if topic == tasks.noop.topic:
        tasks.noop.delay(0)
    else:
        tasks.app.send(topic, body)
    topic_id = tasks.app.stream.catalog.topic(topic).id
    tasks.app.close()
    first, _ = extend(stage, topic_id, count)
    return topic_id, first


def processes(lab: Lab) -> list[Finding]:
    """A drain of no-op tasks by more and more processes."""
    findings = {count: Finding("scale/processes", f"{count} processes x 4 threads") for count in _PROCESSES}
    for _ in range(lab.size.repeats):
        for count, finding in findings.items():
            with lab.servers.stage(lab.stage_size) as stage:
                _, first = _backlog(stage, "noop", lab.size.drained)
                with worker.running(stage, worker.Shape("noop", count)):
                    finding.add(messages_per_s=wait_done(stage, first, lab.size.drained))
    return list(findings.values())


def groups(lab: Lab) -> list[Finding]:
    """One topic that more and more groups read to its end, in the same two processes."""
    findings = {count: Finding("scale/groups", f"{count} groups") for count in _GROUPS}
    for _ in range(lab.size.repeats):
        for count, finding in findings.items():
            with lab.servers.stage(lab.stage_size) as stage:
                os.environ["BENCH_GROUPS"] = str(count)
                try:
                    _, first = _backlog(stage, "events", lab.size.drained)
                    with worker.running(stage, worker.Shape("events", app="bench.studies.grouped_app")):
                        rate = wait_done(stage, first, lab.size.drained, count)
                finally:
                    del os.environ["BENCH_GROUPS"]
                finding.add(runs_per_s=rate, messages_per_s=rate / count)
    return list(findings.values())


def servers(lab: Lab) -> list[Finding]:
    """Three streams, each drained by a worker of one process: on one, two and three servers of one machine."""
    findings = {count: Finding("scale/servers", f"3 streams, {counted(count, 'server')}") for count in (1, 2, 3)}
    with _three_servers(lab) as all_servers:
        for _ in range(lab.size.repeats):
            for count, finding in findings.items():
                with _streams(lab, all_servers[:count]) as stages, _Cpu(all_servers[:count]) as cpu:
                    per_s = _drain_all(stages, lab.size.drained // 3)
                done = 3 * (lab.size.drained // 3)
                finding.add(messages_per_s=per_s, servers_us_a_message=cpu.used_s / done * 1e6)
    return list(findings.values())


def shares(lab: Lab) -> list[Finding]:
    """Three streams, each with senders and a worker, on one, two and three servers that have a share of a core each."""
    what = f"{_SHARE:.0%} of a core each"
    findings = {count: Finding("scale/shares", f"3 streams, {counted(count, 'server')}, {what}") for count in (1, 2, 3)}
    with _three_servers(lab) as all_servers:
        for _ in range(lab.size.repeats):
            for count, finding in findings.items():
                with _streams(lab, all_servers[:count]) as stages:
                    try:
                        per_s, us = _send_to_all(stages, all_servers[:count], _SECONDS)
                    except OSError as error:
                        lab.tell(f"scale/shares: left out, a process cannot be held to a share of a core ({error})")
                        return []
                    finding.add(messages_per_s=per_s, servers_us_a_message=us)
    return list(findings.values())


class _Cpu:
    """CPU seconds that servers use within the block."""

    def __init__(self, all_servers: Sequence[Server]) -> None:
        self._pids = [_pid(server) for server in all_servers]
        self.used_s = 0.0

    def __enter__(self) -> _Cpu:
        self.used_s = -sum(map(used_s, self._pids))
        return self

    def __exit__(self, *_: object) -> None:
        self.used_s += sum(map(used_s, self._pids))


def _pid(server: Server) -> int:
    if server.pid is None:
        raise NotRight("scale: a server has ended")
    return server.pid


@contextmanager
def _three_servers(lab: Lab) -> Iterator[list[Server]]:
    others = [Server(lab.folder / name, lab.servers.database.flavor) for name in ("second", "third")]
    with ExitStack() as stack:
        for server in others:
            stack.callback(server.stop)
            server.start()
        yield [lab.servers.database, *others]


@contextmanager
def _streams(lab: Lab, on: Sequence[Server]) -> Iterator[list[Stage]]:
    """Three streams; the last server has what is over."""
    with ExitStack() as stack:
        stages = [stack.enter_context(lab.servers.stage(lab.stage_size)) for _ in range(3)]
        for number in range(1, 3):
            if (place := min(number, len(on) - 1)) > 0:
                stages[number] = _on(on[place], stages[number])
        yield stages


def _send_to_all(stages: Sequence[Stage], on: Sequence[Server], seconds: float) -> tuple[float, float]:
    """Send to all streams at once, while a worker of each runs what is sent.

    Returns:
        confirmed messages a second over all, and the servers' CPU for each in microseconds.

    Raises:
        OSError: a server cannot be held to a share of a core.
    """
    with ExitStack() as stack:
        senders = []
        for stage in stages:
            stack.enter_context(worker.running(stage, worker.Shape("noop", 1)))
            command = [sys.executable, "-m", "bench.studies.sender", stage.url, str(seconds), str(_SENDERS)]
            senders.append(subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=worker.environment(stage)))
            stack.callback(_end, senders[-1])
        for sender in senders:
            if _line(sender) != "ready":
                raise NotRight("scale/shares: a sender did not become ready")
        with ExitStack() as limits, _Cpu(on) as cpu:
            for server in on:
                limits.enter_context(limited(_pid(server), _SHARE))
            for sender in senders:
                _say(sender, "begin")
            found = [_line(sender).split() for sender in senders]
        counts = [int(count) for _, count in found]
        for stage, count in zip(stages, counts, strict=True):
            wait_done(stage, 1, count)
            stage.check("messages", count, "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
    return sum(float(per_s) for per_s, _ in found), cpu.used_s / sum(counts) * 1e6


def _line(sender: subprocess.Popen[str]) -> str:
    assert sender.stdout is not None, "it was opened with a pipe"
    return sender.stdout.readline().strip()


def _say(sender: subprocess.Popen[str], text: str) -> None:
    assert sender.stdin is not None, "it was opened with a pipe"
    sender.stdin.write(f"{text}\n")
    sender.stdin.flush()


def _end(sender: subprocess.Popen[str]) -> None:
    with sender:
        sender.kill()


def _on(server: Server, stage: Stage) -> Stage:
    """The same kind of stage on another server."""
    found = re.search(r"/(ems_\w+)$", stage.url)
    if found is None:
        raise NotRight(f"scale/servers: {stage.url.rpartition('@')[2]} names no database")
    url = re.sub(r"/ems$", f"/{found[1]}", server.url)
    there = Stage(url, None, stage.folder / "elsewhere", stage.size)
    there.folder.mkdir()
    with Stage(server.url, None, stage.folder, stage.size).connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE `{found[1]}` CHARACTER SET utf8mb4")
    with Database(url).session() as session:
        migrate(session)
    return there


def _drain_all(stages: list[Stage], count: int) -> float:
    """Messages a second over all, from the first claim to the last acked offset; the servers share a clock."""
    firsts = [_backlog(stage, "noop", count)[1] for stage in stages]
    with ExitStack() as stack:
        for stage in stages:
            stack.enter_context(worker.running(stage, worker.Shape("noop", 1)))
        for stage, first in zip(stages, firsts, strict=True):
            wait_done(stage, first, count)
    spans = [
        [
            stage.value(f"SELECT UNIX_TIMESTAMP({what}) FROM ems_claim")
            for what in ("MIN(claimed_at)", "MAX(progress_at)")
        ]
        for stage in stages
    ]
    return count * len(stages) / float(max(end for _, end in spans) - min(begin for begin, _ in spans))


STUDIES = (
    Study("scale/processes", "more processes", processes),
    Study("scale/groups", "more groups", groups),
    Study("scale/servers", "three streams on one, two and three servers", servers),
    Study("scale/shares", "three streams on one, two and three servers with a share of a core each", shares),
)
