"""More processes, more groups, more servers."""

from __future__ import annotations

import os
import re
from contextlib import ExitStack

from bench import worker
from bench.app import build
from bench.load import BODY
from bench.stage import NotRight, Stage
from bench.studies.backlog import extend, wait_done
from bench.studies.finding import Finding, Lab, Study
from emsworker.core.counted import counted
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from emsworker.store.engine.schema import migrate

_PROCESSES, _GROUPS = (1, 2, 4), (1, 3, 10)


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
    others = [Server(lab.folder / name, lab.servers.database.flavor) for name in ("second", "third")]
    with ExitStack() as stack:
        for server in others:
            stack.callback(server.stop)
            server.start()
        for _ in range(lab.size.repeats):
            for count, finding in findings.items():
                with ExitStack() as inner:
                    stages = [inner.enter_context(lab.servers.stage(lab.stage_size)) for _ in range(3)]
                    for number in range(1, 3):  # the last servers have what is over
                        if (place := min(number, count - 1)) > 0:
                            stages[number] = _on(others[place - 1], stages[number])
                    finding.add(messages_per_s=_drain_all(stages, lab.size.drained // 3))
    return list(findings.values())


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
)
