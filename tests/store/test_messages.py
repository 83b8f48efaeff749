"""Looking at messages: by id, place, key, tag, time and body; paged, bounded and read-only."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from emsworker import Filter
from emsworker.admin import Admin, Messages, Page, Selection
from emsworker.core.errors import ConfigError, InvalidName, PredicateError, UnknownMessage, UnknownTopic
from emsworker.core.selection.bounds import ANYTHING
from emsworker.core.selection.filters import EVERYTHING
from emsworker.publish.outgoing import Outgoing
from emsworker.store.engine.sql import Statements
from tests.support.streams import Stream

START = datetime(2026, 3, 1, tzinfo=UTC)
COUNT = 60


@pytest.fixture
def sent(stream: Stream) -> Stream:
    """60 messages in two partitions, born a minute apart: n -> partition n % 2, key k<n % 5>, tag of its decade."""
    stream.topic(partitions=2)
    sent = [
        Outgoing("t", {"n": n, "deep": {"list": [n, str(n)]}}, key=f"k{n % 5}", tag=f"t{n // 10}", partition=n % 2,
                 headers={"odd": str(n % 2)})
        for n in range(COUNT)
    ]  # fmt: skip
    stream.app().send_many("t", sent)
    stream.rows(
        "UPDATE ems_message SET born_at = %s + INTERVAL 2 * (`offset` - 1) + `partition` MINUTE WHERE `offset` > 0",
        START.replace(tzinfo=None),
    )
    return stream


@pytest.fixture
def messages(sent: Stream) -> Messages:
    return Admin(sent.app()).messages


def numbers(page: Page) -> list[int]:
    return sorted(message.body["n"] for message in page.messages)


def at(minutes: float) -> str:
    return (START + timedelta(minutes=minutes)).isoformat()


SELECTIONS: list[tuple[Selection, Callable[[int], bool]]] = [
    (Selection(), lambda n: True),
    (Selection(partition=1), lambda n: n % 2 == 1),
    (Selection(start="28"), lambda n: n // 2 + 1 >= 28),
    (Selection(start="3", end="5"), lambda n: 3 <= n // 2 + 1 <= 5),
    (Selection(start="-2", end="latest"), lambda n: n >= 56),
    (Selection(start=at(20), end=at(30)), lambda n: 20 <= n < 30),
    (Selection(keys=("k1", b"k2")), lambda n: n % 5 in (1, 2)),
    (Selection(keys=("k1",), tags=("t2", "t3")), lambda n: n % 5 == 1 and 20 <= n < 40),
    (Selection(where="body.n > 50 and header('odd') = '1'"), lambda n: n > 50 and n % 2 == 1),
    (Selection(where="body.deep.list[1] like '1_'"), lambda n: 10 <= n < 20),
    (Selection(where="tag = 't1' or body.n = 3"), lambda n: n // 10 == 1 or n == 3),
    (Selection(where="key like 'k%' and key not like 'k1' and partition = 0"), lambda n: n % 5 != 1 and n % 2 == 0),
    (Selection(where=f"born_at > '{at(49)}'", tags=("t5",)), lambda n: n >= 50),
    (Selection(where="offset in (1, 30)", partition=0), lambda n: n in (0, 58)),
    (Selection(where="tag = 't1' and tag = 't2'"), lambda n: False),
]  # fmt: skip


def test_what_is_selected(messages: Messages) -> None:
    for chosen, wanted in SELECTIONS:
        page = messages.list("t", chosen, limit=100)
        assert numbers(page) == [n for n in range(COUNT) if wanted(n)], chosen
        assert page.after is None
        backwards = messages.list("t", chosen, limit=100, newest=True)
        assert [m.place for m in backwards.messages] == [m.place for m in page.messages][::-1], chosen


def test_pages_join_without_gap_or_overlap(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emsworker.admin.messages.STEP", 7)
    for newest in (False, True):
        for options in (
            *({"limit": 8}, {"limit": 100, "scan": 7}, {"limit": 1, "scan": 1}),
            *({"limit": 100, "within_s": 0.0}, {"limit": 2, "within_s": 0.0}),
        ):
            found: list[tuple[int, int]] = []
            after, pages = None, 0
            while pages == 0 or after is not None:
                page = messages.list("t", Selection(where="body.n >= 0"), after=after, newest=newest, **options)
                found += [message.place for message in page.messages]
                after, pages = page.after, pages + 1
                assert len(page.messages) <= options["limit"] and page.looked_at <= options.get("scan", 100) + 7
                assert "within_s" not in options or page.looked_at <= 7
            assert sorted(found, reverse=newest) == found and len(set(found)) == len(found) == COUNT


def test_a_page_ends_in_time_between_the_bodies_of_a_step(messages: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emsworker.admin.messages._BODIES_BYTES", 1)  # each body is read alone
    for newest in (False, True):
        found, looked_at, after = [], 0, None
        for _ in range(COUNT):
            page = messages.list("t", Selection(where="body.n >= 0"), after=after, newest=newest, within_s=0.0)
            found += [message.place for message in page.messages]
            looked_at, after = looked_at + page.looked_at, page.after
            assert page.looked_at == 1
        assert (after, looked_at, len(set(found))) == (None, COUNT, COUNT) and sorted(found, reverse=newest) == found


def test_indexes_are_used_and_the_rest_is_bounded(sent: Stream, messages: Messages) -> None:
    one = messages.list("t", Selection(start="7", end="7", partition=0)).messages[0]
    assert messages.list("t", Selection(where=f"id = '{one.id}' and body.n = 12")).looked_at == 1
    assert messages.list("t", Selection(where=f"id = '{one.id}' and partition = 1")).looked_at == 0
    seen: list[int] = []
    page = messages.list("t", Selection(where="tag = 'none'"), progress=seen.append)
    assert (page.messages, page.looked_at, page.after, seen) == ((), COUNT, None, [30, 30])
    near = messages.list("t", Selection(start=at(20), end=at(22)))
    assert numbers(near) == [20, 21] and near.looked_at <= 8, "found by time, with a minute to either side"
    args = {"topic_id": 1, "partition": 0, "start": 5, "end": 10, "header_bytes": 9} | ANYTHING.args | EVERYTHING.args
    for statement in (
        Statements("emsworker.store.stream.search").list_messages,
        Statements("emsworker.store.stream.search").list_wanted,
    ):
        plan = sent.explain(statement, args)
        assert [(row["table"], row["type"], row["key"]) for row in plan] == [("ems_message", "range", "PRIMARY")]


def test_a_look_changes_nothing(sent: Stream, messages: Messages) -> None:
    group = sent.group(Admin(sent.app()).topic("t"))
    tables = ("ems_message", "ems_cursor", "ems_claim", "ems_retry", "ems_partition")
    before = [sent.rows(f"SELECT * FROM {table}") for table in tables]
    messages.list("t", Selection(where="body.n = 1"))
    messages.peek("t", group.name)
    messages.get("t/0/1")
    assert [sent.rows(f"SELECT * FROM {table}") for table in tables] == before


def test_peek_shows_what_a_group_would_claim_next(sent: Stream, messages: Messages) -> None:
    topic = Admin(sent.app()).topic("t")
    group = sent.group(topic, filter=Filter(tags=["t1", "t3"]))
    assert [m.body["n"] for m in messages.peek("t", "g", limit=2).messages] == [10, 12, 11, 13]
    sent.take(topic, group, sent.client(), batch=10, partition=0)
    assert [m.body["n"] for m in messages.peek("t", "g", limit=2).messages] == [30, 32, 11, 13]


def test_get_and_contains(sent: Stream, messages: Messages) -> None:
    app = sent.app()
    first = messages.get("t/1/3")[0]
    assert (first.body["n"], first.key, first.tag, first.headers["odd"]) == (5, "k0", "t0", "1")
    assert [m.place for m in messages.get(first.id)] == [(1, 3)] == [m.place for m in messages.get(first.id, "t")]
    assert json.loads(first.raw or b"") == first.body and first.born_at == START + timedelta(minutes=5)
    delayed = app.send("t", 1, countdown=3600)
    gone = app.send("t", 2)
    assert app.cancel(gone)
    never = "0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70"
    wanted = {first.id: "stream", delayed.id: "delayed", gone.id: None, never: None}
    assert messages.contains("t", wanted) == wanted
    assert messages.contains("t", []) == {}
    for what in ("t/0/999", "t/7/1", never, gone.id, delayed.id):
        with pytest.raises(UnknownMessage, match="is kept"):
            messages.get(what)
    for wrong in ("x", "t/x/1"):
        with pytest.raises(InvalidName):
            messages.get(wrong)


def test_what_cannot_be_read_is_counted_and_shown(sent: Stream, messages: Messages) -> None:
    sent.rows("UPDATE ems_message SET body = '{' WHERE `partition` = 0 AND `offset` = 2")
    sent.rows("UPDATE ems_message SET headers = 'x' WHERE `partition` = 0 AND `offset` = 3")
    page = messages.list("t", Selection(where="body.n >= 0 or tag = 't0'"), limit=100)
    assert (len(page.messages), page.unreadable) == (COUNT, 2)
    problems = {m.place: m.problem for m in page.messages if m.problem}
    assert "not valid json" in str(problems[0, 2]) and "headers are not JSON" in str(problems[0, 3])
    assert len(problems) == 2


def test_wrong_selections(messages: Messages) -> None:
    with pytest.raises(UnknownTopic):
        messages.list("nix")
    with pytest.raises(ConfigError, match="partition = 9"):
        messages.list("t", Selection(partition=9))
    with pytest.raises(ConfigError, match="start = soon"):
        messages.list("t", Selection(start="soon"))
    with pytest.raises(PredicateError, match="position 1"):
        messages.list("t", Selection(where="colour = 'red'"))
