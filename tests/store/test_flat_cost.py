"""Statements that run all the time read as many rows far into a long stream as at its beginning (promise 7)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from emsworker import Ems
from emsworker.core.codec import Decoder
from emsworker.core.model import Claim, Group, Topic
from emsworker.store import claims, clients, messages, topics
from emsworker.store.database import Database
from emsworker.store.schema import migrate
from emsworker.store.session import Session

MESSAGES = 20_000
FEW_ROWS = 200


@pytest.fixture(scope="module")
def stream(server: Any) -> Iterator[tuple[Session, Topic, Group]]:
    from tests.support.servers import fresh_database

    with fresh_database(server) as url:
        Database(url).call(migrate)
        app = Ems("flat", url=url)
        app.send_many("long", [b"x"] * MESSAGES)
        topic = app.catalog.topic("long")
        group = app.catalog.group(topic, "readers")
        with Database(url).session() as session:
            session.send("ANALYZE TABLE ems_message")
            yield session, topic, group
        app.close()


def rows_read(session: Session, work: Callable[[], object]) -> int:
    def total() -> int:
        status = session.rows("SHOW SESSION STATUS WHERE Variable_name LIKE 'Handler_read%'")
        return sum(int(value) for _, value in status)

    idle = total()
    idle = total() - idle  # what asking costs
    before = total()
    work()
    return total() - before - idle


def move_cursor(session: Session, group: Group, to: int) -> None:
    session.execute("UPDATE ems_cursor SET next_offset = %(to)s WHERE group_id = %(id)s", {"to": to, "id": group.id})


@pytest.mark.parametrize("cursor", [1, MESSAGES // 2, MESSAGES, MESSAGES + 1])
def test_looking_for_work(stream: tuple[Session, Topic, Group], cursor: int) -> None:
    session, _, group = stream
    move_cursor(session, group, cursor)
    assert rows_read(session, lambda: claims.find_work(session, [group.id])) < FEW_ROWS
    work = claims.find_work(session, [group.id])
    assert bool(work) == (cursor <= MESSAGES)
    if work:
        assert work[group.id].partitions == (0,)


@pytest.mark.parametrize("cursor", [1, MESSAGES // 2])
def test_taking_a_range(stream: tuple[Session, Topic, Group], cursor: int) -> None:
    session, topic, group = stream
    move_cursor(session, group, cursor)
    clients.register(session, [f"c{cursor}"], "p", "n", 15)
    taker = claims.Taker(topic, group, f"c{cursor}", 10, 1000, Decoder())
    taken: list[Claim | None] = []
    assert rows_read(session, lambda: taken.append(claims.take_range(session, taker, 0))) < FEW_ROWS
    assert [(claim.lo, claim.hi) for claim in taken if claim] == [(cursor, cursor + 9)]


def test_asking_for_the_next_free_offset(stream: tuple[Session, Topic, Group]) -> None:
    session, topic, _ = stream
    assert rows_read(session, lambda: messages.next_free_offset(session, topic.id, 0)) < FEW_ROWS
    assert messages.next_free_offset(session, topic.id, 0) == MESSAGES + 1


def test_creating_a_group(stream: tuple[Session, Topic, Group]) -> None:
    session, topic, _ = stream

    def create() -> Group:
        return topics.create_group(session, topic, "late", timeout_s=60, ladder="1s", max_attempts=2, from_start=False)

    assert rows_read(session, create) < FEW_ROWS
    cursor = session.rows("SELECT next_offset FROM ems_cursor WHERE group_id = %(id)s", {"id": create().id})
    assert cursor == ((MESSAGES + 1,),)


def test_a_hole_at_the_cursor_is_found(stream: tuple[Session, Topic, Group]) -> None:
    session, topic, group = stream
    middle = MESSAGES // 2
    where = {"id": topic.id, "offset": middle}
    session.execute("DELETE FROM ems_message WHERE topic_id = %(id)s AND `offset` = %(offset)s", where)
    move_cursor(session, group, middle)
    assert rows_read(session, lambda: claims.find_work(session, [group.id])) < FEW_ROWS
    assert claims.find_work(session, [group.id])[group.id].holes == (0,)
