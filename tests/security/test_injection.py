"""Outside data on real servers: it comes back exactly as it was, or is refused with an error of ours; never SQL."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker.admin import Admin
from emsworker.core.codec import Decoder, decode_headers
from emsworker.core.errors import EmsError
from emsworker.core.flush import ResultRow, storable
from emsworker.core.ids import encode_key, parse_uid
from emsworker.core.selection.filters import Filter
from emsworker.local import LocalDatabase as Server
from emsworker.store import topics
from emsworker.store.groups.progress import flush
from tests.security import nasty
from tests.support.servers import connect
from tests.support.streams import Stream, failed, flush_of

_MODES = ("", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT")


def refused(call: Callable[[], Any]) -> bool:
    """Whether it was refused with an error of ours; any other error fails the test."""
    try:
        call()
    except EmsError as error:
        assert "\n" not in str(error).strip("\n") or len(str(error)) < 1000
        return True
    return False


@pytest.mark.parametrize("mode", _MODES)
def test_what_is_sent_comes_back_exactly(stream: Stream, mode: str) -> None:
    """Keys, tags, headers and bodies, directly, delayed, and with a caller's transaction under any sql_mode."""
    app = stream.app()
    with connect(stream.url, autocommit=False, settings=f"SESSION sql_mode = '{mode}'", charset="utf8mb4") as own:

        @nasty.few()
        @given(
            body=nasty.plain | nasty.raw,
            key=st.none() | nasty.texts | nasty.raw,
            tag=st.none() | nasty.texts,
            headers=nasty.headers,
            way=st.sampled_from([{}, {"countdown": 0}, {"dedup_key": "'\\%s"}, {"transaction": own}]),
        )
        def send(body: Any, key: Any, tag: Any, headers: dict[str, str], way: dict[str, Any]) -> None:
            if "dedup_key" in way and key is not None:
                way = {"dedup_key": key}
            try:
                receipt = app.send("t", body, key=key, tag=tag, headers=headers, **way)
            except EmsError:
                own.rollback()
                return
            own.commit()
            if not receipt.created:
                return
            uid = parse_uid(receipt.id)
            columns = "`key`, tag, headers, body"
            found = stream.rows(
                f"SELECT {columns} FROM ems_message WHERE uid = %s UNION ALL "
                f"SELECT {columns} FROM ems_outbox WHERE uid = %s",
                uid,
                uid,
            )[:1]
            assert found and found[0][:2] == (encode_key("key", key), encode_key("tag", tag))
            stored = decode_headers(found[0][2])
            assert {name: stored[name] for name in headers} == headers
            if not {"content-type", "compression", "content-encoding"} & set(headers):
                assert Decoder().decode(found[0][3], stored) == body

        send()
    assert stream.value("SELECT COUNT(*) FROM ems_topic") == 1


def test_options_of_a_send_are_refused_with_our_own_errors(stream: Stream) -> None:
    app = stream.app()
    names = ["countdown", "delay", "dedup_key", "dedup_window", "partition", "uid", "key", "tag", "headers"]
    names += ["serializer", "compression", "eta"]
    tried: dict[str, set[bool]] = {name: set() for name in names}

    @nasty.few(8)
    @given(st.sampled_from(names), nasty.anything | st.datetimes())
    def send(name: str, value: Any) -> None:
        options = {name: value, **({"dedup_key": "k"} if name == "dedup_window" else {})}
        tried[name].add(refused(lambda: app.send("t", {}, **options)))

    send()
    assert all(True in outcomes for outcomes in tried.values()), tried


def test_names_are_refused_or_kept_exactly(stream: Stream) -> None:
    """Wherever a name, an id or a place is looked up or made."""
    app, admin = stream.app(), Admin(stream.app())
    admin.create_topic("t")
    made: set[str] = {"t"}

    @nasty.few(3)
    @given(nasty.names)
    def use(name: str) -> None:
        if not refused(lambda: admin.create_topic(name)):
            made.add(name)
        if not refused(lambda: admin.create_group("t", name)):
            assert admin.group("t", name).name == name
        for look in (
            lambda: admin.topic(name),
            lambda: admin.group("t", name),
            lambda: admin.group(name, "g"),
            lambda: admin.change_group("t", "g", ladder=name),
            lambda: admin.reset_group("t", "g", to=name),
            lambda: admin.schedules.delete(name),
            lambda: admin.dead.find(name),
            lambda: admin.cancel("t", name),
            lambda: app.result(name).forget(),
            lambda: app.result("0190d6a4-5f2b-7c3e-8d1a-2b3c4d5e6f70", group=name).status,
            lambda: app.cancel(name, "t"),
            lambda: app.once(name).__enter__(),
        ):
            refused(look)

    admin.create_group("t", "g")
    use()
    assert {topic.name for topic in admin.topics()} == made | {"default"}, "results look there"


def test_filters_want_the_same_in_sql_as_in_python(stream: Stream) -> None:
    """Whatever tags and headers messages have, and whatever is left of a damaged block of headers."""
    app, topic, me = stream.app(), stream.topic(), stream.client()
    damaged = [
        "{",
        '{"a":1}',
        '"a"',
        "[1]",
        "[" * 5000 + "]" * 5000,
        '{"a":"' + "[" * 200 + '"}',
        '{"a":' * 150 + "1" + "}" * 150,
        "\\",
        "'",
    ]
    number = iter(range(10**6))
    seen = 0

    @nasty.few()
    @given(
        st.lists(st.tuples(st.none() | nasty.texts, nasty.headers), min_size=1, max_size=4),
        st.data(),
        st.sampled_from(damaged),
    )
    def ask(sent: list[tuple[Any, dict[str, str]]], data: st.DataObject, block: str) -> None:
        nonlocal seen
        tags = st.sampled_from([tag for tag, _ in sent if tag] or ["x"]) | nasty.texts
        headers = st.sampled_from([headers for _, headers in sent]) | nasty.headers
        try:
            wanted = Filter(data.draw(st.lists(tags, max_size=2)), data.draw(headers))
            group = topics.create_group(
                stream.session,
                topic,
                f"g{next(number)}",
                from_start=False,
                filter=wanted,
                timeout_s=9,
                ladder="1s",
                max_attempts=1,
            )
            receipts = [app.send("t", 1, tag=tag, headers=headers) for tag, headers in sent]
        except EmsError:
            return
        last = app.send("t", 1, headers={"damaged": "1"})
        stream.rows("UPDATE ems_message SET headers = %s WHERE `offset` = %s", block, last.offset)
        assert topics.get_group(stream.session, topic, group.name) == group
        places = [receipt.offset for receipt in receipts]
        expected = [
            place
            for place, (tag, headers) in zip(places, sent, strict=True)
            if wanted.matches(encode_key("tag", tag), headers)
        ]
        claim = stream.take(topic, group, me)
        assert [message.offset for message in claim.messages if message.offset != last.offset] == expected
        seen += len(expected)

    ask()
    assert seen


@pytest.mark.parametrize("mode", _MODES)
def test_errors_of_handlers_are_kept_whatever_they_say(stream: Stream, mode: str) -> None:
    """Their texts are of the outside, too; a handler may even have changed the session's sql_mode."""
    app, topic = stream.app(), stream.topic()
    group, me = stream.group(topic), stream.client()
    stream.session.execute("SET SESSION sql_mode = %(mode)s", {"mode": mode})

    @nasty.few(0.3)
    @given(nasty.texts, nasty.texts)
    def fail(error: str, reason: str) -> None:
        receipt = app.send("t", 1)
        claim = stream.take(topic, group, me)
        dead = dataclasses.replace(failed(claim.hi, dead=reason), error=error)
        row = ResultRow(parse_uid(receipt.id), None, storable(error)[:255], storable(error), storable(reason), 60.0)
        flush(stream.session, flush_of(claim, topic, claim.hi, failures=[dead], results=[row]))
        kept = stream.rows("SELECT reason, error FROM ems_dead WHERE `offset` = %s", receipt.offset)
        assert kept == [(storable(reason), storable(error))]
        found = stream.rows("SELECT error, traceback FROM ems_result WHERE uid = %s", parse_uid(receipt.id))
        assert found == [(storable(error), storable(reason))]

    fail()


def test_sessions_set_their_own_sql_mode(stream: Stream, server: Server) -> None:
    """Whatever the server's default is."""
    with connect(server.admin_url, autocommit=True) as root, root.cursor() as cursor:
        cursor.execute("SELECT @@GLOBAL.sql_mode")
        (before,) = cursor.fetchone() or ("",)
        cursor.execute("SET GLOBAL sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'")
        try:
            with stream.new_session() as session:
                text = "\\' \" \\n `x` \0 %"
                assert session.rows("SELECT %(a)s, @@sql_mode", {"a": text})[0][0] == text
                mode = session.rows("SELECT @@sql_mode")[0][0]
                assert "STRICT_TRANS_TABLES" in mode and "ESCAPES" not in mode and "QUOTES" not in mode
        finally:
            cursor.execute("SET GLOBAL sql_mode = %s", (before,))
