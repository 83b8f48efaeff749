"""Ten thousand topics and twenty thousand groups: what the beat, workers, lists and the dashboard cost there."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import pytest

from emsworker.admin.monitoring import Monitoring
from emsworker.admin.standing import Standings
from emsworker.beat.retention import trim
from emsworker.beat.services import LedStream, leader_services
from emsworker.core.config import Settings
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from emsworker.store.groups import claims
from tests.store.test_flat_cost import SEQUENCE, reads
from tests.support.streams import Stream

LONG = bool(os.environ.get("EMS_TEST_CAPACITY_LONG"))
TOPICS = 10_000 if LONG else 1_000
GROUPS = 2 * TOPICS


def fill(stream: Stream, topics: int) -> None:
    """Topics with one partition and two groups each; every tenth has a message that no group has claimed."""
    numbers = f"{SEQUENCE} WHERE n <= {topics}"
    stream.rows(
        "INSERT INTO ems_topic (id, name, max_message_bytes, retention_s, created_at) "
        f"SELECT 100 + n, CONCAT('many.', n), 4194304, IF(n % 2, 86400, NULL), NOW(6) FROM {numbers}"
    )
    stream.rows(f"INSERT INTO ems_topic_guard (topic_id) SELECT 100 + n FROM {numbers}")
    stream.rows(
        "INSERT INTO ems_partition (topic_id, `partition`, next_offset) "
        f"SELECT 100 + n, 0, IF(n % 10, 1, 2) FROM {numbers}"
    )
    for group in (1, 2):
        stream.rows(
            "INSERT INTO ems_group (id, topic_id, name, timeout_ms, ladder, max_attempts, filter, created_at) "
            f"SELECT {group} * 1000000 + n, 100 + n, 'g{group}', 60000, '10s', 3, '{{}}', NOW(6) FROM {numbers}"
        )
        stream.rows(
            "INSERT INTO ems_cursor (group_id, `partition`, next_offset) "
            f"SELECT {group} * 1000000 + n, 0, 1 FROM {numbers}"
        )
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, uid, headers, body, size, born_at) "
        f"SELECT 100 + n, 0, 1, UNHEX(LPAD(HEX(n), 32, '0')), '', '1', 1, NOW(6) FROM {numbers} AND n % 10 = 0"
    )
    stream.rows("ANALYZE TABLE ems_topic, ems_partition, ems_group, ems_cursor, ems_message")


@pytest.fixture
def crowded(stream: Stream) -> Iterator[Stream]:
    fill(stream, TOPICS)
    yield stream


def measured(session: Session, work: Callable[[], Any]) -> tuple[float, int]:
    """Return the seconds and the rows that the server read, of the second of two runs."""
    work()
    began = perf_counter()
    work()
    seconds = perf_counter() - began
    return seconds, reads(session, work)


def test_what_many_topics_cost(crowded: Stream) -> None:
    session, settings = crowded.session, Settings()
    database = Database(crowded.url)
    monitoring = Monitoring(database)
    few = [1_000_000 + n for n in range(1, 11)]
    work: dict[str, Callable[[], Any]] = {
        "find_work of 10 groups": lambda: claims.find_work(session, few),
    }
    for service in leader_services(LedStream()):
        name = getattr(service, "__name__", type(service).__name__)
        work[f"beat: {name}"] = partial(service, session, settings)
    found = {name: measured(session, one) for name, one in work.items()}
    standings = Standings(database)
    lists: dict[str, Callable[[], Any]] = {
        "list of all groups": standings.groups,
        "list of all topics": standings.topics,
        "200 groups": lambda: standings.groups(200),
        "200 topics": lambda: standings.topics(200),
        "lag of one topic": lambda: monitoring.lag(topic="many.10"),
    }
    found |= {name: measured(database.thread_session(), one) for name, one in lists.items()}
    for name, (seconds, rows) in sorted(found.items(), key=lambda one: -one[1][0]):
        print(f"{name:30} {1000 * seconds:10.1f} ms {rows:10} rows")

    assert found["find_work of 10 groups"][1] <= 30 * len(few)
    assert found["beat: trim"][1] <= 3 * TOPICS
    assert found["beat: Relay"][1] <= 3 * TOPICS + 10, "and those of the look at ems_publish"
    assert found["beat: resolve"][1] <= 3 * TOPICS + 10
    assert found["beat: clear_orphans"][1] <= 6 * TOPICS
    assert found["beat: TakeSamples"][1] <= 15 * GROUPS, "and at most a tenth of the time, whatever it takes"
    assert found["list of all groups"][1] <= 5 * GROUPS + 2 * TOPICS
    assert found["list of all topics"][1] <= 5 * TOPICS
    assert found["200 groups"][1] <= 1_500
    assert found["200 topics"][1] <= 3_500
    assert found["lag of one topic"][1] <= 60
    assert statements(session, lambda: trim(session, settings)) <= 3


def statements(session: Session, work: Callable[[], Any]) -> int:
    """How many statements the server ran for ``work``."""

    def count() -> int:
        return int(session.rows(Sql("SHOW SESSION STATUS LIKE 'Questions'"))[0][1])

    before = count()
    work()
    return count() - before - 1
