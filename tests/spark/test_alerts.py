"""Alerts on a real stream: each is told once and resolved once, whatever happens to the driver."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emsworker.admin import Admin
from tests.process.stream import Stream, open_stream
from tests.spark.conftest import CONF, ROOT, spark_environment
from tests.support.servers import TestServers, chosen_flavors
from tests.support.waiting import until
from tests.support.webhooks import receiver

_PATIENCE_S = 240.0  # a Java starts on what may be a busy machine


@pytest.fixture
def watched(servers: TestServers, tmp_path: Path) -> Iterator[Stream]:
    """A stream with the topics of the shop, and a group that nobody works for."""
    with open_stream(servers.database(chosen_flavors()[0]), tmp_path) as stream:
        admin = Admin(stream.app)
        for topic, group in (("orders", "sellers"), ("idle", "post")):
            admin.create_topic(topic)
            admin.create_group(topic, group, max_attempts=1)
        yield stream


def told(folder: Path) -> list[dict[str, Any]]:
    """All events, in the order of their files."""
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


@contextmanager
def driver(stream: Stream, folder: Path, *options: str) -> Iterator["subprocess.Popen[bytes]"]:
    """``ems pipeline alerts`` as somebody starts it, killed with its Java at the end."""
    command = [sys.executable, "-m", "emsworker", "pipeline", "alerts", "--events", str(folder / "events")]
    command += ["--checkpoint", str(folder / "checkpoint"), *options, *CONF]
    environment = {**os.environ, **spark_environment(), "EMS_URL": stream.url}
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.timeout(900)
def test_an_alert_in_a_quiet_stream_fires_once_and_is_resolved_once_over_a_kill(
    watched: Stream, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    commits = tmp_path / "checkpoint" / "commits"

    def batches() -> int:
        return max((int(file.name) for file in commits.glob("[0-9]*")), default=-1)

    def see(process: "subprocess.Popen[bytes]", states: list[str], more: int) -> None:
        """Until these were told, and so many more samples were taken in which nothing else was."""

        def there() -> bool:
            assert process.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
            return len(told(events)) >= len(states)

        until(there, _PATIENCE_S, f"{states}; {(tmp_path / 'driver.log').read_text()[-2000:]}", 0.1)
        before = batches()
        until(lambda: batches() >= before + more, _PATIENCE_S, "more samples", 0.1)
        assert [event["event"] for event in told(events)] == states

    watched.send("idle", [{"n": n} for n in range(3)])  # and then nothing happens any more
    with receiver() as web:
        options = ("--consume-timeout", "1500ms", "--every", "1s", "--to-topic", "pager", "--webhook", web.url)
        with driver(watched, tmp_path, *options) as process:
            see(process, ["firing"], 2)
        with driver(watched, tmp_path, *options) as process:
            see(process, ["firing"], 3)
            Admin(watched.app).reset_group("idle", "post", "latest")
            see(process, ["firing", "resolved"], 2)
        firing, resolved = told(events)
        assert web.got == [firing, resolved]
    assert firing["id"] == resolved["id"]
    assert (firing["rule"], firing["topic"], firing["group"]) == ("consume_timeout", "idle", "post")
    assert firing["value"] > 1.5 > resolved["value"]
    sent = watched.rows(
        "SELECT m.body FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id AND m.`offset` > 0 WHERE t.name = 'pager' ORDER BY m.`offset`"
    )
    assert [json.loads(body) for (body,) in sent] == [firing, resolved]


def test_errors_are_counted_by_samples_from_cron(
    watched: Stream, spark_session: Any, profiles: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from emsworker.spark.jobs import load

    profiles.write_text(f"[test]\nurl = {watched.url}\n", encoding="utf-8")
    monkeypatch.setattr("emsworker.spark.jobs.alerts.alerts._GONE_LEAST_S", 2.0)
    job = load("alerts")
    folder = tmp_path / "events"

    def once() -> dict[str, Any]:
        config = job.options(
            profile="test", checkpoint=str(tmp_path / "checkpoint"), events=str(folder), error_rate=0.3, lag=15,
            least=5, once=True, every=1.0,
        )  # fmt: skip
        return dict(job.run(spark_session, config).summary)

    for n in [5, 16, 27, 38, *range(100, 104)]:  # every 11th is no article
        watched.app.publisher.send("orders", [[n], {}], headers={"ems-task": "order"})
    watched.send("idle", [{"n": n} for n in range(16)])
    assert once()["firing"] == 1, "the lag of idle/post; of errors nothing is known yet"
    worker = watched.worker("tests.spark.apps.shop:app", processes=1, threads=1)
    until(lambda: watched.one("SELECT COUNT(*) FROM ems_dead") == 4, 30, "four are dead")
    cursor = "SELECT next_offset FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id WHERE g.name = 'sellers'"
    until(lambda: watched.one(cursor) == 9, 30, "all are claimed")
    until(lambda: not watched.open_claims() and not watched.rows("SELECT 1 FROM ems_retry"), 30, "all are done")
    assert worker.stop() == 0
    until(
        lambda: watched.one("SELECT MAX(ended_at) < NOW(6) - INTERVAL 1200000 MICROSECOND FROM ems_attempt"),
        10,
        "a second",
    )
    assert once()["firing"] == 1
    again = once()
    assert (again["firing"], again["resolved"]) == (0, 0)
    Admin(watched.app).delete_group("idle", "post", force=True)
    until(lambda: once()["resolved"], 120, "the group has not been seen for five seconds")
    lag, errors, gone = told(folder)
    assert (gone["id"], gone["event"], gone["text"]) == (lag["id"], "resolved", "lag resolved: the group is gone")
    (failed,), (retried,) = watched.rows(
        "SELECT COUNT(*) FROM ems_attempt WHERE outcome <> 'done' UNION ALL SELECT COUNT(*) FROM ems_attempt WHERE attempt > 1"
    )
    assert (failed, retried) == (13, 9), "each dead one has failed three times, and the bank was away once"
    assert (lag["rule"], lag["topic"], lag["value"]) == ("lag", "idle", 16.0)
    assert (errors["rule"], errors["topic"], errors["value"]) == (
        "error_rate",
        "orders",
        round(failed / (8 + retried), 3),
    )
