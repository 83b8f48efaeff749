"""The demo from end to end, and proof that its verification would notice."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.local import Database as Server
from emsworker.store.database import Database
from emsworker.store.schema import migrate
from sample_app import stream, tables
from sample_app.expected import Expected, expect
from sample_app.processes import start_worker
from sample_app.publish import prepare, publish
from sample_app.verify import verify
from tests.support.servers import TestServers, chosen, chosen_flavors, fresh_database

FLIGHTS = 400
SEED = 2013
MAX_ATTEMPTS = 3
HOME = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("flavor", chosen_flavors())
def test_every_number_is_right_after_a_worker_was_killed(flavor: str) -> None:
    done = run_demo("--limit", "5000", "--server", flavor)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"killed worker-1 with -9 at \d+%", done.stdout)
    assert "0 were written twice" in done.stdout
    assert "5,000 flights" in done.stdout
    assert ", 0 differences" in done.stdout
    assert "everything is equal" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif("redis" not in chosen(), reason="no redis among the test servers")
def test_redis_may_hand_out_the_offsets(servers: TestServers) -> None:
    done = run_demo("--limit", "2000", "--allocator", "redis", "--server", chosen_flavors()[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "which hands out the offsets" in done.stdout


def test_wrong_usage_is_one_line() -> None:
    done = run_demo("--limit", "0")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def run_demo(*arguments: str) -> "subprocess.CompletedProcess[str]":
    # A setting of the user's own stream must not reach the demo's.
    environment = os.environ | {"EMS_URL": "mysql://nobody:nothing@127.0.0.1:1/none"}
    command = [sys.executable, "-m", "sample_app.demo", *arguments]
    return subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, timeout=240)


@pytest.fixture(scope="module")
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[tables.Connection, Expected]]:
    """A stream through which a real worker has run some flights."""
    with fresh_database(server) as url:
        Database(url).call(migrate)
        settings = {"ladder": "50ms", "max_attempts": MAX_ATTEMPTS}
        with closing(Ems("test", url=url, **settings)) as app, closing(tables.connect(url)) as connection:
            tables.create(connection)
            prepare(app)
            assert sum(new for _, new in publish(app, FLIGHTS)) == FLIGHTS
            environment = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
            environment |= {"EMS_URL": url, "EMS_LADDER": "50ms", "EMS_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}
            worker = start_worker("worker", environment, tmp_path_factory.mktemp("logs"))
            try:
                wait_until_finished(connection)
                worker.terminate()
                assert worker.wait(30) == 0, worker.last_words()
            finally:
                worker.kill_group()
            yield connection, expect(FLIGHTS, SEED, MAX_ATTEMPTS)


def wait_until_finished(connection: tables.Connection) -> None:
    deadline = time.monotonic() + 60
    while not stream.finished(groups := stream.read_groups(connection)):
        assert time.monotonic() < deadline, groups
        time.sleep(0.05)


Finished = tuple[tables.Connection, Expected]


def test_a_run_is_right(finished: Finished) -> None:
    connection, expected = finished
    outcome = verify(connection, expected)
    assert outcome.differences == []
    assert outcome.compared > 6 * len(expected.carriers) + 6 * len(expected.routes) + 2 * FLIGHTS
    assert stream.count_clients(connection) == 0


@pytest.mark.parametrize(
    ("change", "back", "named"),
    [
        (
            "UPDATE sample_carrier SET departures = departures + 1 WHERE carrier = 'UA'",
            "UPDATE sample_carrier SET departures = departures - 1 WHERE carrier = 'UA'",
            r"carrier UA: departures is \d+ in MySQL, and should be \d+",
        ),
        (
            "UPDATE sample_route SET arr_delay_min = arr_delay_min - 1 WHERE origin = 'JFK' AND dest = 'LAX'",
            "UPDATE sample_route SET arr_delay_min = arr_delay_min + 1 WHERE origin = 'JFK' AND dest = 'LAX'",
            r"route JFK-LAX: arr_delay_min is .* in MySQL, and should be .*",
        ),
        (
            "UPDATE sample_carrier SET fingerprint = fingerprint + 7 WHERE carrier = 'B6'",
            "UPDATE sample_carrier SET fingerprint = fingerprint - 7 WHERE carrier = 'B6'",
            r"carrier B6: fingerprint is .*",
        ),
        (
            "UPDATE sample_aircraft SET tailnum = 'N0' WHERE tailnum = 'N14228'",
            "UPDATE sample_aircraft SET tailnum = 'N14228' WHERE tailnum = 'N0'",
            r"aircraft N0 is only in MySQL\naircraft N14228 is only in the CSV",
        ),
        (
            "UPDATE ems_message SET kind = 'tombstone' WHERE uid = UNHEX(REPLACE('{flight}', '-', ''))",
            "UPDATE ems_message SET kind = 'message' WHERE uid = UNHEX(REPLACE('{flight}', '-', ''))",
            r"topic flights: {flight} is missing",
        ),
        (
            "UPDATE ems_claim SET state = 'start' ORDER BY group_id, `partition`, lo LIMIT 1",
            "UPDATE ems_claim SET state = 'done'",
            r"group \w+ of \S+: open claims is 1 in MySQL, and should be 0",
        ),
        (
            "UPDATE sample_notice SET delay_min = delay_min + 1",
            "UPDATE sample_notice SET delay_min = delay_min - 1",
            r"notice \S+: delay_min is .*",
        ),
    ],
)
def test_a_planted_difference_is_found(finished: Finished, change: str, back: str, named: str) -> None:
    connection, expected = finished
    flight = expected.flights[7]
    tables.query(connection, change.replace("{flight}", flight))
    try:
        differences = verify(connection, expected).differences
    finally:
        tables.query(connection, back.replace("{flight}", flight))
    assert re.fullmatch(
        named.replace("{flight}", flight), "\n".join(differences[:2] if "\\n" in named else differences[:1])
    )
    assert verify(connection, expected).differences == []


def test_a_missing_and_a_needless_dead_letter_are_found(finished: Finished) -> None:
    connection, expected = finished
    wrong = Expected(**vars(expected) | {"dead": [*expected.dead, expected.notifications[0]]})
    assert any(
        line.startswith("dead letters: notifier") and line.endswith("is missing")
        for line in verify(connection, wrong).differences
    )


def test_a_message_that_is_there_twice_is_found(finished: Finished) -> None:
    connection, expected = finished
    wrong = Expected(**vars(expected) | {"events": expected.events[1:]})
    [line] = verify(connection, wrong).differences
    assert line == f"topic aircraft-events: {expected.events[0]} is there 1 times, and should be 0 times"
