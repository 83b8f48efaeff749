"""Handlers that take their time, bodies of all sizes, many senders, and latency under load."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from bench import latency, raw, side, worker
from bench.app import Tasks, build
from bench.load import rate
from bench.stage import NotRight, Stage
from bench.studies.backlog import extend, wait_done
from bench.studies.finding import Finding, Lab, Study
from emsworker.tasks.task import Task

_NAPS_MS, _PROCESSES, _THREADS = (1, 10, 100), 2, 8
_BODIES = {"1 KB": 1_000, "10 KB": 10_000, "100 KB": 100_000, "1 MB": 1_000_000}
_CLAIM_BYTES = 4 << 20
_SENDERS, _CALLERS = 20, 20
_FLOOD = 4  # times as many messages to find the capacity as are timed at a share of it


def _topic_of(stage: Stage, task_of: Callable[[Tasks], Task], argument: object) -> int:
    """A topic with one message of a task."""
    tasks = build(url=stage.url)
    task = task_of(tasks)
    task.delay(argument)
    topic_id = tasks.app.stream.catalog.topic(task.topic).id
    tasks.app.close()
    return topic_id


# -- handlers ----------------------------------------------------------------------------------------------------------


def handlers(lab: Lab) -> list[Finding]:
    """Handlers that sleep, in 16 threads, beside 16 threads that do nothing else, and what a perfect clock would do."""
    findings = {nap: Finding("loaded/handlers", f"{nap} ms, {_PROCESSES} x {_THREADS} threads") for nap in _NAPS_MS}
    for _ in range(lab.size.repeats):
        for nap, finding in findings.items():
            _, bare = side.at_once(["naps", str(_THREADS), str(nap / 1000)], _PROCESSES, lab.stage_size.seconds)
            count = int(bare * max(3.0, 4 * lab.stage_size.seconds))
            with lab.servers.stage(lab.stage_size) as stage:
                ours = _nap(stage, nap / 1000, count)
            finding.add(of_the_bare_threads=ours / bare, runs_per_s=ours, bare_threads_per_s=bare)
            finding.add(**{"perfect/s": 1000 * _PROCESSES * _THREADS / nap})
    return list(findings.values())


def _nap(stage: Stage, nap_s: float, count: int) -> float:
    """Runs a second while there is enough for all threads: from when a tenth has run until when nine have."""
    topic_id = _topic_of(stage, lambda tasks: tasks.nap, nap_s)
    first, _ = extend(stage, topic_id, count)
    seen: list[tuple[float, int]] = []
    with worker.running(stage, worker.Shape("naps", _PROCESSES, _THREADS)):
        with stage.connect() as connection, connection.cursor() as cursor:
            while not seen or seen[-1][1] < 0.9 * count:
                cursor.execute("SELECT CAST(COALESCE(SUM(acked_to + 1 - lo), 0) AS SIGNED) FROM ems_claim")
                seen.append((time.perf_counter(), int((cursor.fetchone() or (0,))[0])))
                time.sleep(0.02)
        wait_done(stage, first, count)
    within = [one for one in seen if one[1] >= 0.1 * count]
    (began, before), (ended, after) = within[0], within[-1]
    if ended == began:
        raise NotRight(f"loaded/handlers: {count} messages were too few")
    return (after - before) / (ended - began)


# -- bodies ------------------------------------------------------------------------------------------------------------


def bodies(lab: Lab) -> list[Finding]:
    """Bodies of all sizes, sent by one caller and run, beside one row a commit and plain reads of the same bytes."""
    findings = {name: Finding("loaded/bodies", name) for name in _BODIES}
    for _ in range(lab.size.repeats):
        for name, size in _BODIES.items():
            findings[name].add(**_send_bodies(lab, size), **_run_bodies(lab, size))
    return list(findings.values())


def _row(size: int) -> tuple[bytes, bytes]:
    return raw.ROW[0], json.dumps({"text": "x" * size}).encode()


def _send_bodies(lab: Lab, size: int) -> dict[str, float]:
    with lab.servers.stage(lab.stage_size) as stage:
        bare = raw.insert(1, _row(size))(stage)["messages/s"]
    with lab.servers.stage(lab.stage_size) as stage:
        app = build(url=stage.url).app
        body = {"text": "x" * size}
        app.send("events", body)

        def step() -> int:
            app.send("events", body)
            return 1

        ours, count = rate(stage.size.seconds, 1, lambda number: step)
        app.close()
        stage.check("messages", count + 1, "SELECT COUNT(*) FROM ems_message WHERE `offset` > 0")
    megabyte = size / 1e6
    return {"send_MB_per_s": ours * megabyte, "raw_send_MB_per_s": bare * megabyte, "send_of_raw": ours / bare}


def _run_bodies(lab: Lab, size: int) -> dict[str, float]:
    page = max(1, min(500, _CLAIM_BYTES // size))
    count = max(1, min(lab.size.drained, 24 * _CLAIM_BYTES // size) // page) * page
    with lab.servers.stage(lab.stage_size) as stage:
        bare = raw.read_bodies(stage, count, page, _row(size))["messages/s"]
    with lab.servers.stage(lab.stage_size) as stage:
        topic_id = _topic_of(stage, lambda tasks: tasks.blob, "x" * size)
        first, _ = extend(stage, topic_id, count)
        with worker.running(stage, worker.Shape("blobs")):
            ours = wait_done(stage, first, count)
    megabyte = size / 1e6
    return {"run_MB_per_s": ours * megabyte, "raw_read_MB_per_s": bare * megabyte, "run_of_raw": ours / bare}


# -- senders -----------------------------------------------------------------------------------------------------------


def senders(lab: Lab) -> list[Finding]:
    """Twenty processes that send to one partition, each send confirmed, beside twenty that insert one row a commit."""
    cases: dict[str, Callable[[Stage], list[str]]] = {
        "one row a commit": lambda stage: ["raw", stage.url],
        "mysql allocator": lambda stage: ["send", stage.url, "", "mysql"],
    }
    if lab.servers.redis is not None:
        cases["redis allocator"] = lambda stage: ["send", stage.url, str(stage.redis_url), "redis"]
    findings = {name: Finding("loaded/senders", f"{_SENDERS} processes, {name}") for name in cases}
    for _ in range(lab.size.repeats):
        for name, work in cases.items():
            with lab.servers.stage(lab.stage_size, redis=name == "redis allocator") as stage:
                findings[name].add(messages_per_s=_send_from_many(stage, work(stage)))
    return list(findings.values())


def _send_from_many(stage: Stage, work: list[str]) -> float:
    if work[0] == "raw":
        raw.create(stage)
    else:
        app = build(url=stage.url).app
        app.stream.catalog.topic("events")
        app.close()
    count, per_s = side.at_once(work, _SENDERS, 2 * stage.size.seconds)
    if work[0] == "raw":
        stage.check("raw rows", count, "SELECT COUNT(*) FROM raw_message")
        return per_s
    where = "kind = 'message' AND topic_id = (SELECT id FROM ems_topic WHERE name = 'events')"
    stage.check("messages", count, f"SELECT COUNT(*) FROM ems_message WHERE {where}")
    stage.check("different uids", count, f"SELECT COUNT(DISTINCT uid) FROM ems_message WHERE {where}")
    return per_s


# -- latency -----------------------------------------------------------------------------------------------------------


def latencies(lab: Lab) -> list[Finding]:
    """From the call that sends to the handler's first line, at a fixed pace and at shares of what the machine can do.

    The capacity is what twenty threads that send as fast as they can get through, sent and run, on this machine.
    """
    findings: dict[str, Finding] = {}
    total = lab.stage_size.stamps

    def measure(title: str, redis: bool, *pace: Any) -> dict[str, float]:
        with lab.servers.stage(lab.stage_size, redis=redis) as stage:
            found = latency.at(*pace)(stage)
        findings.setdefault(title, Finding("loaded/latency", title)).add(**found)
        return found

    for _ in range(lab.size.repeats):
        for redis in (False, True) if lab.servers.redis is not None else (False,):
            woken = ", woken by Redis" if redis else ""
            measure(f"500/s{woken}", redis, 500, 1, total)
            most = measure(f"as fast as it goes{woken}", redis, 0, _CALLERS, _FLOOD * total)["run/s"]
            for share in (0.5, 0.8):
                measure(f"{share:.0%} of that{woken}", redis, share * most, _CALLERS, total)
    return list(findings.values())


STUDIES = (
    Study("loaded/handlers", "handlers that take 1, 10 and 100 ms", handlers),
    Study("loaded/bodies", "bodies from 1 KB to 1 MB", bodies),
    Study("loaded/senders", "many processes that send", senders),
    Study("loaded/latency", "from send to handler, under load", latencies),
)
