"""Pages and commands of a stream with very many topics, groups, clients, schedules, alarms and readers.

Each page has a bounded size, and each list a limit and a note. ``EMS_TEST_CAPACITY_LONG=1`` makes 10,000 topics and
20,000 groups, and looks at the clock, too.
"""

import time
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from emsworker.admin import Admin
from emsworker.beat.samples import TakeSamples
from emsworker.cli.main import ems
from emsworker.core.config import Settings
from emsworker.local import LocalDatabase
from emsworker.web.cache import SharedCache
from emsworker.web.overview import MOST_LINES
from tests.store.test_flat_cost import SEQUENCE
from tests.store.test_many_topics import GROUPS, LONG, TOPICS, fill
from tests.support.machine import machine_s
from tests.support.recycling import recycled_database
from tests.support.streams import Stream, open_stream
from tests.web.conftest import Visiting

_MOST_BYTES = 300_000
_MOST_ROWS = 6_000 + 5 * TOPICS  # clients, schedules, alarms that fire and readers are read whole
_MOST_S = 2.0
_MOST_STATEMENTS = 900  # the check tries the privileges of all roles
_QUICK = {"dead list --by topic": 12, "top --once": 8}  # rows that are read for each topic
# Beside that: names that a text is compared with, topics in which an id is looked up, and what the check reads of each.
_MORE_ROWS = {"q=many": 3 * GROUPS, "id=0": 3 * GROUPS, "/check": 10 * TOPICS}


@pytest.fixture(scope="module")
def stream(server: LocalDatabase) -> Iterator[Stream]:
    with recycled_database(server) as url, open_stream(url) as made:
        fill(made, TOPICS)
        crowd(made)
        TakeSamples()(made.session, Settings())
        yield made


def crowd(stream: Stream) -> None:
    """As many clients, schedules, alarms that fire, readers and dead letters as there are topics."""
    admin = Admin(stream.app())
    admin.alarms.create("backlog", on="lag")
    for number in range(2 * MOST_LINES):
        admin.alarms.create(f"rule{number}", on="oldest")
    news = stream.topic("news", kind="broadcast")
    numbers = f"FROM {SEQUENCE} WHERE n <= {TOPICS}"
    stream.rows(
        "INSERT INTO ems_client (client_id, process_id, name, started_at, renewed_at, expires_at) SELECT CONCAT('10.0.0.7-', "
        "n DIV 10, '-', LPAD(HEX(n), 32, '0'), '-', n), CONCAT('10.0.0.7-', n DIV 10), CONCAT('worker-', n DIV 10), NOW(6), "
        f"NOW(6), NOW(6) + INTERVAL 1 DAY {numbers}"
    )
    stream.rows(
        "INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, headers, body, next_at, declared_at) SELECT "
        f"CONCAT('nightly.', n), '0 3 * * *', 'UTC', 'last', CONCAT('many.', n), '{{}}', '1', NOW(6) + INTERVAL 1 DAY, NOW(6) {numbers}"
    )
    stream.rows(
        "INSERT INTO ems_alarm (rule, topic, group_name, alarm_id, state, value, since, fired_at) SELECT 'backlog', "
        f"CONCAT('many.', n), 'g1', UNHEX(LPAD(HEX(n), 32, '0')), 'firing', 1, NOW(6), NOW(6) {numbers}"
    )
    stream.rows(
        "INSERT INTO ems_position (topic_id, name, `partition`, next_offset, stored_at) "
        f"SELECT {news.id}, CONCAT('cache/w/', n), 0, 1, NOW(6) {numbers}"
    )
    stream.rows(
        "INSERT INTO ems_dead (group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, "
        "task, error_type, reason, error) SELECT 1000000 + n, 0, 1, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', NOW(6), 'p', "
        f"NOW(6) - INTERVAL n SECOND, 3, 'pay', 'KeyError', 'no', 'oh no' {numbers}"
    )


def rows_read(stream: Stream) -> int:
    """The rows that the server has read for anybody; reading this reads some itself."""
    return sum(int(value) for _, value in stream.rows("SHOW GLOBAL STATUS LIKE 'Handler_read%'"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/", "200 of"),
        ("/groups", "200 of"),
        ("/groups?state=no+consumer", "no consumer"),
        ("/groups?state=idle", "first 200"),
        ("/groups?q=many.77/g1", "many.77"),
        ("/groups/many.10/g1", "many.10"),
        ("/topics", "200 of"),
        (f"/topics?q=many.{TOPICS}", f"many.{TOPICS}"),
        ("/topics/many.10", "many.10"),
        ("/topics/news", f"200 of {TOPICS:,}"),
        ("/messages", "many."),
        ("/messages?topic=many.10", "many.10"),
        ("/running", "Running"),
        ("/retries", "Retries"),
        ("/delayed", "Delayed"),
        ("/dead", "many.1<"),
        ("/dead?task=pay", "many.1<"),
        ("/clients", "the processes that are first by name"),
        ("/schedules", "Next page"),
        ("/alarms", f"and {TOPICS - 10:,} more"),
        ("/check", "Check"),
        ("/trace?id=many.10/0/1", "many.10"),
        ("/trace?id=0000-00000000-00000000-00000000000a", "many.10"),
        ("/go?q=many.10", ""),
        ("/go?q=many.10/g1", ""),
    ],
)
def test_a_page_of_many_groups_is_bounded(stream: Stream, visit: Visiting, path: str, text: str) -> None:
    client = visit("reader")
    before = rows_read(stream)
    own = rows_read(stream) - before
    began, began_s = time.perf_counter(), machine_s()
    page = client.get(path)
    seconds, machine = time.perf_counter() - began, machine_s() - began_s
    rows = rows_read(stream) - before - 2 * own
    print(f"\n{path:46} {page.status_code} {1000 * seconds:8.0f} ms {rows:9} rows {len(page.text):9} bytes", end=" ")
    assert not LONG or machine < _MOST_S
    assert page.status_code in (200, 303) and len(page.text) < _MOST_BYTES
    assert text in page.text, path
    assert rows <= _MOST_ROWS + sum(more for part, more in _MORE_ROWS.items() if part in path), path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "note"),
    [
        ("topics list", "longest"),
        ("groups list", "most lag"),
        ("groups list many.10", ""),
        ("clients", "first by name"),
        ("schedules list", "first by name"),
        ("readers list", "first by topic and name"),
        ("readers list news", "first by topic and name"),
        ("alarms list", "first by name"),
        ("alarms silences", ""),
        ("dead list", "There are more"),
        ("dead list --by topic", "more rows"),
        ("refused list", ""),
        ("top --once", "first by lag"),
        ("check", ""),
        ("servers list", ""),
    ],
)
def test_a_list_of_many_has_a_limit_and_says_so(stream: Stream, command: str, note: str) -> None:
    limit = ["--limit", "100"] if note else []
    before, asked = rows_read(stream), stream.status("Questions")["Questions"]
    began, began_s = time.perf_counter(), machine_s()
    done = CliRunner().invoke(ems, [*command.split(), *limit], env={"EMS_URL": stream.url})
    seconds, rows, machine = time.perf_counter() - began, rows_read(stream) - before, machine_s() - began_s
    statements = stream.status("Questions")["Questions"] - asked
    lines = done.stdout.count("\n")
    print(
        f"\n{command:46} {done.exit_code} {1000 * seconds:8.0f} ms {rows:9} rows {lines:6} lines {statements} statements",
        end=" ",
    )
    assert statements < _MOST_STATEMENTS  # none for each group or topic
    if command in _QUICK:
        assert rows <= _QUICK[command] * TOPICS and not (LONG and machine > 0.5), (rows, machine)
    assert done.exit_code in (0, 1) and note in done.stderr, done.output[-2000:]
    assert lines < 120


def test_a_reading_that_takes_long_is_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, now = SharedCache(), [100.0]
    monkeypatch.setattr("emsworker.web.cache.ticks", lambda: now[0])

    def read(took_s: float) -> float:
        now[0] += took_s
        return now[0]

    def get(took_s: float) -> float:
        return cache.get("groups", 0.0, lambda: read(took_s))

    assert get(0.2) == get(0.2) == 100.2
    now[0] += 1.0
    assert get(0.2) == 100.2, "it took a fifth of a second, so it rests for longer"
    now[0] += 100.0
    assert get(0.0) == now[0]
    now[0] += 0.05
    assert get(0.0) == now[0], "what takes no time is read each time"
