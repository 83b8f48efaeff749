"""The demo from end to end, and proof that its verification would notice."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from emsworker import Ems
from emsworker.local import LocalDatabase as Server
from emsworker.store.engine.database import Database
from sample_app import stream, tables
from sample_app.config import announce
from sample_app.expected import Expected, expect
from sample_app.night import bring_forward, rehearse_next, wait_for_flows, wait_for_summary
from sample_app.processes import start_worker
from sample_app.publish import prepare, publish
from sample_app.settings import NEW_TITLE, TITLE
from sample_app.verify import verify, verify_rehearsal, verify_summary, verify_title
from tests.support.machine import machine_s
from tests.support.servers import TestServers, chosen, chosen_flavors, few_flavors, fresh_database
from tests.support.tables import migrate

FLIGHTS = 400
MALFORMED = 12
SEED = 2013
MAX_ATTEMPTS = 3
HOME = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("flavor", few_flavors())
def test_every_number_is_right_after_a_worker_was_killed(flavor: str) -> None:
    done = run_demo("--limit", "5000", "--server", flavor, "--web")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"The dashboard is at http://127.0.0.1:\d+/", done.stdout)
    assert re.search(r"killed worker-1 with -9 at \d+%", done.stdout)
    assert "0 were written twice" in done.stdout
    assert "5,000 flights" in done.stdout
    assert "every one of 12 malformed rows a dead letter with its reason, in each of 3 groups" in done.stdout
    assert re.search(r"every one of \d+ flights of FL and VX noted in the order of its aircraft", done.stdout)
    assert "none of them early" in done.stdout and "nightly summary" in done.stdout
    assert re.search(r"every one of \d+ carriers' shares written once, and summed up by the nightly flow", done.stdout)
    assert re.search(r"every one of \d+ rows of its rehearsal, which failed at the end, undone", done.stdout)
    assert ", 0 differences" in done.stdout
    assert "changed the title of the summary in all 2 worker processes" in done.stdout
    assert "everything is equal" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif("redis" not in chosen(), reason="no redis among the test servers")
def test_redis_may_hand_out_the_offsets(servers: TestServers) -> None:
    done = run_demo("--limit", "2000", "--allocator", "redis", "--server", chosen_flavors()[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "which hands out the offsets" in done.stdout


@pytest.mark.slow
def test_the_same_checks_hold_on_three_servers(servers: TestServers) -> None:
    done = run_demo("--limit", "3000", "--servers", "3", "--web", "--server", chosen_flavors()[0])
    assert re.search(r"The dashboard is at http://127.0.0.1:\d+/", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "placed: flights on main, aircraft-events on east, notifications on west, reports on main" in done.stdout
    assert re.search(r"killed worker-1 with -9 at \d+%", done.stdout)
    assert "0 were written twice" in done.stdout and ", 0 differences" in done.stdout
    assert re.search(r"every one of \d+ notices sent 3 s later, none of them early", done.stdout)
    assert "everything is equal" in done.stdout


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
def finished(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Finished"]:
    """A stream through which a real worker has run some flights."""
    with fresh_database(server) as url:
        Database(url).call(migrate)
        settings = {"ladder": "50ms", "max_attempts": MAX_ATTEMPTS}
        with closing(Ems("test", url=url, **settings)) as app, closing(tables.connect(url)) as connection:
            tables.create([connection])
            prepare(app)
            assert sum(new for _, new in publish(app, FLIGHTS)) == FLIGHTS + MALFORMED
            environment = {name: value for name, value in os.environ.items() if not name.startswith("EMS_")}
            environment |= {"EMS_URL": url, "EMS_LADDER": "50ms", "EMS_MAX_ATTEMPTS": str(MAX_ATTEMPTS)}
            worker = start_worker("worker", environment, tmp_path_factory.mktemp("logs"))
            try:
                wait_until_finished(connection)
                announce(app, [connection], NEW_TITLE, {"worker": 4}, 1)
                slot = bring_forward(app)
                wait_for_summary([connection], slot)
                assert rehearse_next(app, slot) == slot + timedelta(days=1)
                wait_for_flows([connection])
                worker.terminate()
                assert worker.wait(30) == 0, worker.last_words()
            finally:
                worker.kill_group()
            yield connection, expect(FLIGHTS, SEED, MAX_ATTEMPTS), slot


def wait_until_finished(connection: tables.Connection) -> None:
    deadline = machine_s() + 60
    while not stream.finished(groups := stream.read_groups([connection])):
        assert machine_s() < deadline, groups
        time.sleep(0.05)


Finished = tuple[tables.Connection, Expected, datetime]


def test_a_run_is_right(finished: Finished) -> None:
    connection, expected, slot = finished
    outcome = verify([connection], expected)
    assert outcome.differences == [] and verify_summary([connection], expected, slot).differences == []
    assert verify_rehearsal([connection], expected, slot + timedelta(days=1)).differences == []
    assert outcome.compared > 6 * len(expected.carriers) + 6 * len(expected.routes) + 2 * FLIGHTS
    assert stream.count_clients([connection]) == 0
    assert len(expected.notifications) > 0 and expected.total["flights"] == FLIGHTS
    dead = stream.read_dead([connection])
    for reason in ("there is no carrier", "dep_delay is 'late', and should be a number", "a str is no row"):
        assert sum(line.endswith(f": {reason}") for line in dead) == 3 * MALFORMED / 3, "in each of three groups"


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
            r"group \S+ of \S+: open claims is 1 in MySQL, and should be 0",
        ),
        (
            "UPDATE sample_notice SET delay_min = delay_min + 1",
            "UPDATE sample_notice SET delay_min = delay_min - 1",
            r"notice \S+: delay_min is .*",
        ),
        (
            "UPDATE sample_rotation SET chain = chain + 1 ORDER BY tailnum LIMIT 1",
            "UPDATE sample_rotation SET chain = chain - 1 ORDER BY tailnum LIMIT 1",
            r"rotation of \S+: chain is .*",
        ),
        (
            "UPDATE sample_notice SET due_at = told_at + INTERVAL 1 SECOND",
            "UPDATE sample_notice SET due_at = told_at",
            r"notices that came early is \d+ in MySQL, and should be 0",
        ),
        (
            "UPDATE ems_dead SET reason = 'whatever' WHERE reason = 'a str is no row'",
            "UPDATE ems_dead SET reason = 'a str is no row' WHERE reason = 'whatever'",
            r"dead letters: aircraft \S+: whatever is there 1 times, and should be 0 times",
        ),
        (
            "INSERT INTO ems_outbox (topic_id, due_at, uid, headers, body, producer_id, created_at)"
            " SELECT id, NOW(6) + INTERVAL 1 DAY, UNHEX(REPEAT('0', 32)), '', '', '', NOW(6) FROM ems_topic"
            " WHERE name = 'reports'",
            "DELETE FROM ems_outbox",
            r"group night-shift of reports: delayed is 1 in MySQL, and should be 0",
        ),
    ],
)
def test_a_planted_difference_is_found(finished: Finished, change: str, back: str, named: str) -> None:
    connection, expected, _ = finished
    flight = expected.flights[7]
    tables.query(connection, change.replace("{flight}", flight))
    try:
        differences = verify([connection], expected).differences
    finally:
        tables.query(connection, back.replace("{flight}", flight))
    assert re.fullmatch(
        named.replace("{flight}", flight), "\n".join(differences[:2] if "\\n" in named else differences[:1])
    )
    assert verify([connection], expected).differences == []


def test_a_missing_and_a_needless_dead_letter_are_found(finished: Finished) -> None:
    connection, expected, _ = finished
    dead = [*expected.dead[1:], "notifier nobody: used up its 3 attempts"]
    assert verify([connection], Expected(**vars(expected) | {"dead": dead})).differences == [
        f"dead letters: {expected.dead[0]} is there 1 times, and should be 0 times",
        "dead letters: notifier nobody: used up its 3 attempts is missing",
    ]


def test_a_wrong_and_a_missing_summary_are_found(finished: Finished) -> None:
    connection, expected, slot = finished
    tables.query(connection, "UPDATE sample_summary SET departures = departures + 1")
    assert re.fullmatch(
        rf"summary of {slot:%H:%M:%S}: departures is \d+ in MySQL, and should be \d+",
        "\n".join(verify_summary([connection], expected, slot).differences),
    )
    tables.query(connection, "UPDATE sample_summary SET departures = departures - 1")
    never = slot - timedelta(days=1)
    *shares, summary = verify_summary([connection], expected, never).differences
    assert shares == [f"share of {carrier} is only in the CSV" for (carrier,) in sorted(expected.carriers)]
    assert summary == f"summary of {never:%H:%M:%S} is only in the CSV"


@pytest.mark.parametrize(
    ("change", "back", "named"),
    [
        (
            "UPDATE sample_title SET slot = slot + INTERVAL 1 DAY",
            "UPDATE sample_title SET slot = slot - INTERVAL 1 DAY",
            "rows left of the rehearsal is 1 in MySQL, and should be 0",
        ),
        (
            "UPDATE ems_flow_step SET kind = 'undo' WHERE kind = 'undone' AND name LIKE '%%withdraw%%'",
            "UPDATE ems_flow_step SET kind = 'undone' WHERE name LIKE 'undo %%withdraw%%'",
            "calls that undo the rehearsal: 1. discard_shares took back {carriers} is there 1 times, and should be 0 times",
        ),
        (
            "UPDATE ems_dead SET reason = CONCAT(reason, '!') WHERE reason LIKE 'flow %%'",
            "UPDATE ems_dead SET reason = TRIM(TRAILING '!' FROM reason)",
            "dead letters of flows: flow 'rehearsal' has failed: Reject: a rehearsal is not signed off; its steps were "
            "undone, so it is over! is there 1 times, and should be 0 times",
        ),
        (
            "UPDATE ems_flow SET ended_at = NULL WHERE name = 'summarize'",
            "UPDATE ems_flow SET ended_at = changed_at WHERE name = 'summarize'",
            "flows that have not ended is 1 in MySQL, and should be 0",
        ),
    ],
)
def test_a_rehearsal_that_was_not_undone_is_found(finished: Finished, change: str, back: str, named: str) -> None:
    connection, expected, slot = finished
    tables.query(connection, change)
    try:
        differences = verify_rehearsal([connection], expected, slot + timedelta(days=1)).differences
    finally:
        tables.query(connection, back)
    assert differences[0] == named.replace("{carriers}", str(len(expected.carriers)))
    assert verify_rehearsal([connection], expected, slot + timedelta(days=1)).differences == []


def test_a_wrong_title_and_a_process_that_has_not_heard_of_it_are_found(finished: Finished) -> None:
    connection, _, slot = finished
    assert verify_title([connection], slot, NEW_TITLE, 1).differences == []
    assert verify_title([connection], slot, TITLE, 1).differences == [
        f"title of the summary: {NEW_TITLE} is there 1 times, and should be 0 times",
        f"title of the summary: {TITLE} is missing",
        "processes that go by the title is 0 in MySQL, and should be 1",
    ]


def test_a_message_that_is_there_twice_is_found(finished: Finished) -> None:
    connection, expected, _ = finished
    wrong = Expected(**vars(expected) | {"events": expected.events[1:]})
    [line] = verify([connection], wrong).differences
    assert line == f"topic aircraft-events: {expected.events[0]} is there 1 times, and should be 0 times"
