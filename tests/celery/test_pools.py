"""Workers of each kind of pool: their tasks end, SIGTERM loses and repeats none, and kill -9 loses none."""

import signal
from collections.abc import Callable

import pytest

from tests.celery.chaos import LEASE_S
from tests.celery.project import Project, Worker
from tests.support.commands import Ems
from tests.support.waiting import until

POOLS = {
    "prefork": ("-P", "prefork", "-c", "2"),
    "threads": ("-P", "threads", "-c", "2"),
    "gevent": ("-P", "gevent", "-c", "2"),
    "solo": ("-P", "solo"),
}
BOUNDED = ("threads",)  # what CI runs of them; chaos and remote control run on prefork
TASKS = 24
PREFETCH = 8  # two at once, multiplier 4


@pytest.mark.parametrize(
    "pool", [pytest.param(name, marks=() if name in BOUNDED else pytest.mark.slow) for name in POOLS]
)
def test_a_pool_runs_stops_and_dies_without_losing_a_task(start: Callable[..., Project], pool: str) -> None:
    project = start(lease_s=LEASE_S)
    first = project.worker(*POOLS[pool]).wait_ready()
    results = project.run("print(*(one.get(timeout=60) for one in [add.delay(n, n) for n in range(5)]))")
    assert results.split() == ["0", "2", "4", "6", "8"]
    _check_the_error_of_a_dead_letter(project)

    project.run("for number in range(int(sys.argv[1])): wait.delay(number)", TASKS)
    _stop_amid_tasks(project, first, 1 if pool == "solo" else 2)
    began, ended = project.count("began"), project.count("ended")
    assert began == ended, "SIGTERM: what runs is finished"
    assert len(ended) < TASKS
    assert _in_hand(project) == 0, "the rest went back at once"

    second = project.worker(*POOLS[pool]).wait_ready()
    before = len(ended)
    until(lambda: len(project.count("ended")) > before + 1, 60, "the second one works")
    second.kill()
    known = project.count("ended")
    assert len(known) < TASKS
    assert max(known.values()) == 1, f"what SIGTERM gave back was not run before: {known}\n{first.text[-5000:]}"

    project.worker(*POOLS[pool]).wait_ready()
    project.wait_ended(TASKS)
    again = [number for number, times in project.count("ended").items() if times > 1]
    assert len(again) <= PREFETCH, again
    until(lambda: _in_hand(project) == 0, 30, "all are acknowledged")


def _stop_amid_tasks(project: Project, worker: Worker, width: int) -> None:
    """Send SIGTERM while as many tasks run as can, and each is known to run; then let them end.

    Celery forgets a task that it has just written to a child, which runs it all the same, if SIGTERM comes before the
    child's word that it has begun: it counts on the broker to deliver it again, with whatever broker (AsynPool.flush).
    """
    until(lambda: len(project.count("began")) == 3 + width, 60, "three have ended, and the next ones wait")
    if width > 1:  # one process that runs its tasks itself knows, and has no time to answer
        active = "print(*(len(tasks) for tasks in (app.control.inspect(timeout=10, limit=1).active() or {}).values()))"
        until(lambda: project.run(active).strip() == str(width), 60, "the worker knows that they run")
    worker.process.send_signal(signal.SIGTERM)
    until(lambda: "Warm shutdown" in worker.text, 60, "it has heard of the end")
    (project.folder / "go").touch()
    assert worker.wait_gone() == 0, worker.text[-2000:]


def _check_the_error_of_a_dead_letter(project: Project) -> None:
    project.run("bill.delay(1)")
    ems = Ems({"EMS_URL": project.broker.url.removeprefix("ems+")}, project.folder)
    (letter,) = until(lambda: ems.ok("dead", "list", "--json").json["dead_letters"], 30, "it is a dead letter")
    (shown,) = ems.ok("dead", "show", letter["id"], "--json").json
    assert letter["error"] == "LookupError"
    assert "in bill" in shown["error"] and "no rate for order 1" in shown["error"], shown["error"]


def _in_hand(project: Project) -> int:
    """The number of claims whose messages somebody has in hand."""
    ((count,),) = project.rows("SELECT COUNT(*) FROM ems_claim WHERE state = 'start'")
    return int(count)
