"""Lists of tasks: what waits is estimated at the same cost however much it is, and figures of processes add up."""

import json
import random
from dataclasses import replace

import pytest
from click.testing import CliRunner

from emsworker.admin import Admin
from emsworker.cli.main import ems
from emsworker.core.counted import Estimate
from emsworker.core.errors import ConfigError, UnknownTask
from emsworker.core.model import HandlerRow
from emsworker.core.task_figures import BOUNDS_S, TaskFigures, bucket_of, percentile
from emsworker.store.engine.database import Database
from emsworker.store.groups import fair, handlers, task_figures, task_pauses
from emsworker.store.groups.claims import find_work, take_range
from emsworker.store.groups.limits import acquire
from tests.store.test_flat_cost import SEQUENCE, reads
from tests.support.streams import Stream


def _fill(stream: Stream, topic_id: int, rows: int) -> None:
    """Messages of two tasks, three of ``a`` to one of ``b``, and a few of another group."""
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, size, born_at) "
        f'SELECT {topic_id}, 0, n, UNHEX(LPAD(HEX(n), 32, \'0\')), IF(MOD(n, 100) = 0, \'{{"ems-task":"c","ems-group":"x"}}\', '
        'IF(MOD(n, 4) = 0, \'{"ems-task":"b","ems-group":"g"}\', \'{"ems-task":"a","ems-group":"g"}\')), \'1\', 1, NOW(6) '
        f"FROM {SEQUENCE} WHERE n <= {rows} ORDER BY n"
    )
    stream.rows(f"UPDATE ems_partition SET high_watermark = {rows + 1}, next_offset = {rows + 1}")


def test_what_waits_costs_the_same_however_much_it_is(stream: Stream) -> None:
    topic = stream.topic()
    stream.group(topic)
    database = Database(stream.url)
    tasks = Admin(database).tasks
    _fill(stream, topic.id, 100)
    few = {one.task: one.waiting for one in tasks.list()}
    assert few == {"a": 75, "b": 24} and not any(isinstance(count, Estimate) for count in few.values())
    cost = reads(database.thread_session(), lambda: tasks.list("t"))
    stream.rows("DELETE FROM ems_message")
    _fill(stream, topic.id, 100_000)
    many = {one.task: one.waiting for one in tasks.list()}
    assert all(isinstance(count, Estimate) for count in many.values())
    assert 60_000 < (many["a"] or 0) < 90_000 and 15_000 < (many["b"] or 0) < 35_000
    assert reads(database.thread_session(), lambda: tasks.list("t")) < cost + 2000
    assert str(many["a"]).startswith("~")


def test_figures_of_several_processes_add_up(stream: Stream) -> None:
    group = stream.group(stream.topic())
    rng = random.Random(7)
    spans = [rng.lognormvariate(-3, 1) for _ in range(2000)]
    for part in (spans[:900], spans[900:]):
        figures = TaskFigures(runs=len(part), failed=1, cpu_us=1000 * len(part), cpu_runs=len(part), error="E: no")
        figures.spans.update(map(bucket_of, part))
        figures.waits[bucket_of(0.05)] += 1
        task_figures.add(stream.session, {(group.id, "a"): figures, (group.id, "b"): TaskFigures(runs=1)})
    stream.rows("UPDATE ems_task_figure SET slot_at = slot_at - INTERVAL 2 HOUR WHERE task = 'b'")
    (view,) = Admin(Database(stream.url)).tasks.list()
    assert (view.task, view.runs, view.failed, view.error, view.cpu_s) == ("a", 2000, 2, "E: no", 0.001)
    exact = sorted(spans)
    for share, told in zip((0.5, 0.95, 0.99), view.runs_s, strict=True):
        assert told == pytest.approx(exact[int(share * 2000)], rel=0.2)
    assert {one.task for one in Admin(Database(stream.url)).tasks.list(within_s=7200 + 600)} == {"a", "b"}
    assert task_figures.delete_old(stream.session, 100) == 0
    stream.rows("UPDATE ems_task_figure SET slot_at = slot_at - INTERVAL 1 DAY")
    assert task_figures.delete_old(stream.session, 100) == 2
    assert percentile({}, 0.5) is None and percentile({len(BOUNDS_S) - 1: 1}, 0.99) is not None


def test_a_client_that_does_not_know_the_paused_tasks_claims_nothing(stream: Stream) -> None:
    topic = stream.topic()
    group, client = stream.group(topic), stream.client()
    _fill(stream, topic.id, 10)
    handlers.declare(stream.session, group.id, [HandlerRow("a", "retry", None, None)])
    assert find_work(stream.session, [group.id]).open == {group.id}
    tasks = Admin(Database(stream.url)).tasks
    with pytest.raises(UnknownTask, match="did you mean 'a'"):
        tasks.pause("t", "g", "aa")
    with pytest.raises(UnknownTask, match="did you mean 'a'"):
        tasks.resume("t", "g", "aa")
    tasks.pause("t", "g", "a")
    tasks.pause("t", "g", "a")
    found = find_work(stream.session, [group.id])
    assert not found.open and found.work[group.id].held
    claimant = stream.claimant(topic, group, client)
    assert not take_range(stream.session, claimant, 0)
    assert acquire(stream.session, group.id, client, 5, held=True).paused == {"a"}
    assert tasks.resume("t", "g", "a") == 0
    assert not find_work(stream.session, [group.id]).work[group.id].held
    assert take_range(stream.session, stream.claimant(topic, group, client), 0)
    with pytest.raises(ConfigError, match="within_s"):
        tasks.list(within_s=5)
    assert task_pauses.list_pauses(stream.session, [group.id]) == set()


def test_what_waits_in_the_lanes_of_a_fair_group_counts(stream: Stream) -> None:
    topic = stream.topic()
    group, client = stream.group(topic), stream.client()
    _fill(stream, topic.id, 20)
    claimant = replace(stream.claimant(topic, group, client, 1), fair="tenant", most_isolation=-1)
    fair.take_new(stream.session, claimant, 0, wait=True)
    assert stream.value("SELECT COUNT(*) FROM ems_retry") == 20
    assert {one.task: one.waiting for one in Admin(Database(stream.url)).tasks.list()} == {"a": 15, "b": 5}


def test_the_commands_list_and_pause_and_leave_a_trace(stream: Stream) -> None:
    topic = stream.topic()
    group = stream.group(topic)
    handlers.declare(stream.session, group.id, [HandlerRow("a", "retry", None, None)])
    _fill(stream, topic.id, 8)

    def run(*arguments: str) -> str:
        done = CliRunner().invoke(ems, ["tasks", *arguments, "--url", stream.url])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "Paused a in t/g." in run("pause", "t", "g", "a")
    (a, b) = json.loads(run("list", "--json"))
    assert (a["task"], a["paused"], a["waiting"], a["estimated"]) == ("a", True, 6, False) and b["waiting"] == 2
    assert "paused" in run("list", "t")
    assert json.loads(run("resume", "t", "g", "a", "--json"))["due"] == 0
    assert [row[0] for row in stream.rows("SELECT DISTINCT action FROM ems_audit ORDER BY action")] == [
        "pause task",
        "resume task",
    ]
