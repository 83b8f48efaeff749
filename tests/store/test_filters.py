"""A group's filter is stored with it, and only what matches is fetched."""

import dataclasses
from typing import Any

import pytest

from emsworker import Filter
from emsworker.admin import Admin
from emsworker.beat import recovery
from emsworker.core.errors import ConfigError
from emsworker.core.offsets import OffsetRange
from emsworker.core.selection.bounds import Bounds
from emsworker.store import topics
from emsworker.store.groups import claims
from emsworker.store.groups.claims import find_work
from emsworker.store.stream import broadcast, search
from tests.support import rows
from tests.support.streams import Stream

_SENT: list[dict[str, Any]] = [
    {"tag": "new"},
    {"tag": "New"},
    {},
    {"tag": "new", "headers": {"region": "eu"}},
    {"tag": "old", "headers": {"region": "eu", "who": 'Zoë "x" \\ 100%'}},
    {"tag": "x' OR '1'='1", "headers": {"region": "EU"}},
]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (Filter(), [1, 2, 3, 4, 5, 6]),
        (Filter(tags=["new"]), [1, 4]),
        (Filter(tags=["old", "new"]), [1, 4, 5]),
        (Filter(headers={"region": "eu"}), [4, 5]),
        (Filter(tags=["new"], headers={"region": "eu"}), [4]),
        (Filter(headers={"who": 'Zoë "x" \\ 100%'}), [5]),
        (Filter(headers={"region": "eu", "who": "nobody"}), []),
        (Filter(tags=["x' OR '1'='1"]), [6]),
    ],
    ids=str,
)
def test_only_matching_messages_are_fetched_and_the_rest_is_done(
    stream: Stream, wanted: Filter, offsets: list[int]
) -> None:
    app, topic = stream.app(), stream.topic()
    for options in _SENT:
        app.send("t", "body", **options)
    group, me = stream.group(topic, filter=wanted), stream.client()
    assert topics.get_group(stream.session, topic, "g") == group
    claim = stream.take(topic, group, me)
    assert [message.offset for message in claim.messages] == offsets
    assert (claim.lo, claim.hi) == (1, 6), "one range, whatever matches"
    assert not find_work(stream.session, [group.id]).work.get(group.id), "the cursor is past them all"
    with app.test() as test:
        for options in _SENT:
            app.send("t", "body", **options)
        in_memory = [number for number, sent in enumerate(test.sent, 1) if wanted.matches(sent.tag, sent.headers)]
        assert in_memory == offsets, "a test app decides as the server does"


@pytest.mark.parametrize(
    "damaged", [b"\xff{", b"", b'{"a":' + b"[" * 200 + b"]" * 200 + b"}"], ids=["text", "empty", "deep"]
)
def test_damaged_headers_match_no_filter_and_stop_nobody(stream: Stream, damaged: bytes) -> None:
    """MySQL refuses JSON that is nested more than 100 deep, which must not fail the statement for its neighbours."""
    app, topic = stream.app(), stream.topic()
    app.send_many("t", [1, 2, 3], headers={"region": "eu"})
    stream.rows("UPDATE ems_message SET headers = %s WHERE `offset` = 2", damaged)
    wanted = Filter(headers={"region": "eu"})
    every = OffsetRange(topic.id, 0, 1, 4)
    assert [one.offset for one in search.list_messages(stream.session, every, Bounds(), wanted, 1 << 16)] == [1, 3]
    assert [one.offset for one in search.list_wanted(stream.session, every, wanted)] == [1, 3]
    assert [row[0] for row in broadcast.read(stream.session, topic, 0, 1, 9, 1 << 20, wanted).rows] == [1, 3]
    group = stream.group(topic, filter=wanted)
    assert [message.offset for message in stream.take(topic, group, stream.client()).messages] == [1, 3]


def test_recovery_charges_the_message_that_ran_not_one_that_was_filtered_out(stream: Stream) -> None:
    app, topic = stream.app(), stream.topic()
    for tag in ("old", "old", "new", "old"):
        app.send("t", tag, tag=tag)
    group = stream.group(topic, filter=Filter(tags=["new"]))
    stream.take(topic, group, stream.client())
    rows.make_overdue(stream.rows)
    stream.rows("UPDATE ems_client SET renewed_at = NOW(6)")
    assert [one.charged for one in recovery.recover(stream.session, 0.0, 0.0)] == [3]
    assert stream.rows("SELECT `offset` FROM ems_retry") == [(3,)]
    rest = claims.take_waiting(stream.session, stream.claimant(topic, group, stream.client()))
    assert rest and rest.lo == 4 and rest.messages == []


def test_workers_of_a_group_must_declare_the_same_filter(stream: Stream) -> None:
    app = stream.app()
    topic, vip = app.stream.catalog.topic("t"), Filter(tags=["vip"], headers={"region": "e u"})
    assert app.stream.catalog.group(topic, "g", vip).filter == vip, "created as declared"
    assert app.stream.catalog.group(topic, "g", Filter(["vip"], {"region": "e u"})).filter == vip
    for other in (Filter(), Filter(tags=["vip"])):
        with pytest.raises(ConfigError, match="tag vip, header region=e u") as caught:
            app.stream.catalog.group(topic, "g", other)
        assert str(other) in str(caught.value) and "ems groups change t g --" in str(caught.value)
    admin = Admin(app)
    admin.change_group("t", "g", filter=Filter(tags=["vip"]))
    assert app.stream.catalog.group(topic, "g", Filter(tags=["vip"])).filter == Filter(tags=["vip"])
    group = admin.change_group("t", "g", timeout_s=5.0)
    assert group == dataclasses.replace(group, filter=Filter(tags=["vip"]), timeout_s=5.0), "others stay as they are"


@pytest.mark.parametrize(
    ("tags", "headers"),
    [("vip", {}), ([""], {}), ([1], {}), (["x" * 300], {}), ([], {"a": 1}), ([], ["a"]), ([], {"a": "y" * 4000})],
)
def test_a_wrong_filter_is_named(tags: Any, headers: Any) -> None:
    with pytest.raises(ConfigError, match="filter"):
        Filter(tags, headers)
