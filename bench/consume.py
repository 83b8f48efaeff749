"""Consuming with real worker processes: a backlog drained, and the way of one message."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from bench import worker
from bench.app import Tasks, build
from bench.stage import NotRight, Stage
from emsworker.core.model import TopicRule
from emsworker.store.topics import change_topic
from emsworker.tasks.task import Task

_FILLERS = 32
_DRAIN_S = 120.0


def _fill(task: Task, count: int) -> None:
    numbers = itertools.count()
    errors: list[BaseException] = []

    def send() -> None:
        try:
            while (number := next(numbers)) < count:
                task.delay(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=send) for _ in range(_FILLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _set_rule(tasks: Tasks, topic: str, rule: TopicRule) -> None:
    """What ``ems topics change --rule`` does: workers of a write-only topic stand ready and claim nothing."""
    found = tasks.app.stream.catalog.topic(topic)
    tasks.app.stream.database.call(lambda session: change_topic(session, replace(found, rule=rule)))
    tasks.app.stream.catalog.forget(topic)


def drain(task_of: Callable[[Tasks], Task], count_of: Callable[[Stage], int]) -> Callable[[Stage], dict[str, float]]:
    """Fill a topic, have a worker stand ready, open the topic, and wait until the group has finished everything.

    The rate counts from the first claim to the last acked offset, by the server's clock.
    """

    def measure(stage: Stage) -> dict[str, float]:
        count = count_of(stage)
        tasks = build(url=stage.url)
        task = task_of(tasks)
        with stage.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE bench_effect (id BIGINT AUTO_INCREMENT PRIMARY KEY, number INT NOT NULL)")
        _set_rule(tasks, task.topic, TopicRule.WRITE)
        _fill(task, count)
        with worker.running(stage, worker.Shape(task.topic)):
            _set_rule(tasks, task.topic, TopicRule.READ_WRITE)
            wait_until_drained(stage, count)
            if task is tasks.flaky:
                wait_until_retried(stage, count)
        tasks.app.close()
        _check_drained(stage, count)
        if task.options.keeps_result:
            stage.check("results", count, "SELECT COUNT(*) FROM ems_result WHERE state = 'done'")
        if task.options.transactional:
            stage.check("rows written by the task", count, "SELECT COUNT(*) FROM bench_effect")
            stage.check("different rows", count, "SELECT COUNT(DISTINCT number) FROM bench_effect")
        return {"messages/s": count / took_s(stage)}

    return measure


def took_s(stage: Stage) -> float:
    """From the first claim to the last acked offset, or to the last retry that has ended."""
    end = "GREATEST(MAX(c.progress_at), COALESCE((SELECT MAX(a.ended_at) FROM ems_attempt a), 0))"
    return float(stage.value(f"SELECT TIMESTAMPDIFF(MICROSECOND, MIN(c.claimed_at), {end}) / 1000000 FROM ems_claim c"))


def wait_until_retried(stage: Stage, count: int) -> None:
    """Wait until so many messages have failed once, and have been done by their second attempt.

    Raises:
        NotRight: one ran more often, or they take too long.
    """
    attempts = "SELECT CAST(SUM({}) AS SIGNED) FROM ems_attempt"
    until = time.monotonic() + _DRAIN_S
    while (done := stage.value(attempts.format("outcome = 'done' AND attempt = 2"))) != count:
        if time.monotonic() > until:
            raise NotRight(f"only {done} of {count} messages were retried within {_DRAIN_S:g} s")
        time.sleep(0.1)
    stage.check("first attempts that failed", count, attempts.format("outcome = 'failed' AND attempt = 1"))
    stage.check("attempts", 2 * count, "SELECT COUNT(*) FROM ems_attempt")


def wait_until_drained(stage: Stage, count: int) -> None:
    """Until the claims that are done hold so many messages."""
    until = time.monotonic() + _DRAIN_S
    query = "SELECT COALESCE(SUM(acked_to + 1 - lo), 0) FROM ems_claim WHERE state = 'done'"
    with stage.connect() as connection, connection.cursor() as cursor:
        while True:
            cursor.execute(query)
            (done,) = cursor.fetchone() or (0,)
            if done >= count:
                return
            if time.monotonic() > until:
                raise NotRight(f"only {done} of {count} messages were done within {_DRAIN_S:g} s")
            time.sleep(0.1)


def _check_drained(stage: Stage, count: int) -> None:
    done = "SELECT CAST(SUM(acked_to + 1 - lo) AS SIGNED) FROM ems_claim WHERE state = 'done'"
    stage.check("messages done, by the claims", count, done)
    stage.check("cursor", count + 1, "SELECT next_offset FROM ems_cursor")
    stage.check("claims left open", 0, "SELECT COUNT(*) FROM ems_claim WHERE state <> 'done'")
    stage.check("retries", 0, "SELECT COUNT(*) FROM ems_retry")
    stage.check("dead letters", 0, "SELECT COUNT(*) FROM ems_dead")
