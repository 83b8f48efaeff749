"""What a reader of broadcasts does at holes, log start offsets, in others' places, and after deaths."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from emsworker import Ems, Filter, Message
from emsworker.admin import Admin
from emsworker.consume.isolation import IsolationGate
from emsworker.core.errors import ConfigError, TopicRuleError, UnknownReader, UnknownTopic
from emsworker.core.model import TopicKind
from emsworker.store.stream import broadcast
from emsworker.worker.broadcast import BroadcastReader
from tests.store.test_retention import trim_all
from tests.support.streams import Stream, wait_until

Heard = list[tuple[Any, int, int]]


def _listen(app: Ems, heard: Heard, topic: str = "news", **options: Any) -> Callable[[Message], None]:
    @app.subscribe(topic, broadcast=True, **options)
    def hear(message: Message) -> None:
        if message.body == "raise":
            raise ValueError("told to")
        heard.append((message.body, message.partition, message.offset))

    return hear.function


@contextmanager
def _reading(stream: Stream, app: Ems, place: str = "w/0", *, signs_off: bool = True) -> Iterator[Callable[[], None]]:
    """A reader's thread; what it yields is the poller's look."""
    deaths: list[BaseException] = []
    reader = BroadcastReader(
        app.stream,
        app.settings,
        app.stream.decoder,
        place,
        print,
        lambda name, e: deaths.append(e),
        IsolationGate(),
    )
    reader.take_on(app, app.registry.broadcasts.values())
    if not signs_off:
        reader.shut_down = lambda: None  # type: ignore[method-assign]
    reader.start()
    try:
        yield lambda: reader.look(stream.session, True)
    finally:
        reader.stop()
        reader.join(10)
    assert not reader.is_alive() and deaths == []


def _wait(look: Callable[[], None], heard: Heard, bodies: list[Any]) -> None:
    def ready() -> bool:
        look()
        return len(heard) >= len(bodies)

    wait_until(ready, what=f"{bodies}, not {heard}")
    assert [body for body, _, _ in heard] == bodies


def _news(stream: Stream, **settings: Any) -> Ems:
    stream.topic("news", kind=TopicKind.BROADCAST, **settings)
    return stream.app(gap_timeout_s=0.05)


def test_a_reader_begins_at_the_end_and_hears_partitions_that_are_added(stream: Stream) -> None:
    app, heard = _news(stream), Heard()
    _listen(app, heard)
    app.send("news", "before")
    with _reading(stream, app) as look:
        app.send("news", "first")
        _wait(look, heard, ["first"])
        Admin(app).change_topic("news", partitions=2)
        app.stream.catalog.forget("news")
        app.send("news", "second", partition=1)
        _wait(look, heard, ["first", "second"])
    assert heard == [("first", 0, 2), ("second", 1, 1)]


def _place(stream: Stream, offset: int) -> None:
    """Write at an offset, as a producer does that has allocated it before."""
    stream.rows(
        "INSERT INTO ems_message (topic_id, `partition`, `offset`, headers, body, born_at, uid) "
        "SELECT id, 0, %s, '', %s, NOW(6), %s FROM ems_topic",
        *(offset, str(offset), bytes([offset] * 16)),
    )


def test_a_reader_stops_at_a_hole_until_it_is_filled_or_closed(stream: Stream) -> None:
    app, heard = _news(stream), Heard()
    _listen(app, heard)
    with _reading(stream, replace_gap(app, 30.0)) as look:
        _place(stream, 1)
        _place(stream, 4)
        _wait(look, heard, [1])
        for offset in (3, 2):
            look()
            _place(stream, offset)
        _wait(look, heard, [1, 2, 3, 4])
    heard.clear()
    with _reading(stream, replace_gap(app, 0.05)) as look:
        _place(stream, 7)
        _wait(look, heard, [7])
    assert stream.rows("SELECT `offset` FROM ems_message WHERE kind = 'tombstone' AND `offset` > 0") == [(5,), (6,)]


def replace_gap(app: Ems, seconds: float) -> Ems:
    app.reconfigure(gap_timeout_s=seconds)
    return app


def test_retention_goes_by_age_and_whoever_is_overtaken_says_how_many_it_missed(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    app, heard = _news(stream, retention_s=3600), Heard()
    _listen(app, heard, name="slow")
    with _reading(stream, app) as look:
        app.send("news", 0)
        _wait(look, heard, [0])
    app.send_many("news", range(1, 11))
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 1 DAY WHERE `offset` <= 8")
    trim_all(stream)
    assert stream.value("SELECT MIN(`offset`) FROM ems_message WHERE `offset` > 0") == 9, "nobody holds it back"
    with _reading(stream, app) as look:
        _wait(look, heard, [0, 8, 9, 10])
    assert "slow was overtaken by retention: it missed 7 messages of partition 0 of topic news, from offset 2" in (
        caplog.text
    )


def test_a_name_belongs_to_the_reader_that_took_it_last(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    app, heard, other, others = _news(stream), Heard(), stream.app(), Heard()
    _listen(app, heard, name="cache")
    _listen(other, others, name="cache")
    with _reading(stream, app) as look, _reading(stream, other) as look_too:
        app.send_many("news", [1, 2])
        _wait(look, heard, [1, 2])
        _wait(look_too, others, [1, 2])
        wait_until(lambda: stream.value("SELECT next_offset FROM ems_position") == 3)
        assert "another process has taken the name cache/w/0" in caplog.text
        app.send("news", 3)
        _wait(look, heard, [1, 2, 3])
    (row,) = Admin(app).readers.list("news")
    assert (row.reader, row.partition, row.lag, row.open) == ("cache/w/0", 0, 1 if len(others) == 2 else 0, False)


def test_deaths_at_one_message_are_counted_and_it_is_passed_over(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    app, heard = _news(stream), Heard()
    _listen(app, heard, name="cache")
    with _reading(stream, app, signs_off=False) as look:
        app.send("news", "fine")
        _wait(look, heard, ["fine"])
    app.send_many("news", ["poison", "after"])

    def start() -> None:
        """A process that dies in its first message."""
        reader = BroadcastReader(
            app.stream, app.settings, app.stream.decoder, "w/0", print, lambda name, e: None, IsolationGate()
        )
        reader.take_on(app, app.registry.broadcasts.values())

    for count in (1, 2):
        start()
        assert stream.rows("SELECT next_offset, deaths FROM ems_position") == [(2, count)]
    with _reading(stream, app, signs_off=False) as look:
        _wait(look, heard, ["fine", "after"])
    assert "cache passes over offset 2 of partition 0 of topic news: 3 processes have died in its run" in caplog.text
    wait_until(lambda: stream.rows("SELECT next_offset, deaths FROM ems_position") == [(4, 0)])
    for _ in range(4):
        start()
    assert stream.value("SELECT deaths FROM ems_position") == 0, "deaths without a message are nobody's fault"


def test_filters_errors_and_hooks(stream: Stream, caplog: pytest.LogCaptureFixture) -> None:
    app, heard = _news(stream), Heard()
    outcomes: list[tuple[str, str]] = []
    from emsworker import Middleware

    class Hooks(Middleware):
        def after_run(self, message: Message, group: str, outcome: Any, error: Any, ran_s: float) -> None:
            outcomes.append((group, outcome.value))

    app.middleware = (Hooks(),)
    _listen(app, heard, name="eu", filter=Filter(tags=["eu"]))
    with _reading(stream, app) as look:
        app.send("news", "us", tag="us")
        app.send("news", "raise", tag="eu")
        app.send("news", "eu", tag="eu")
        _wait(look, heard, ["eu"])
    assert outcomes == [("eu", "failed"), ("eu", "done")]
    assert "ValueError: told to" in caplog.text and "is not run again" in caplog.text
    assert stream.value("SELECT COUNT(*) FROM ems_dead") == stream.value("SELECT COUNT(*) FROM ems_retry") == 0


def test_what_a_broadcast_topic_cannot_do_is_refused(stream: Stream) -> None:
    app, admin = _news(stream), Admin(stream.app())
    with pytest.raises(ConfigError, match="broadcast topic, which has no groups"):
        app.stream.catalog.group(app.stream.catalog.topic("news"), "g")
    for call in (admin.create_group, admin.delete_group, admin.change_group):
        with pytest.raises(ConfigError, match="broadcast topic"):
            call("news", "g")  # type: ignore[operator]
    with pytest.raises(TopicRuleError, match="tasks are run by groups; nothing was sent"):
        app.task(name="t")(print).apply_async(topic="news")
    with pytest.raises(ConfigError, match="age_wins"):
        admin.create_topic("other", kind="broadcast", retention_s=10, age_wins=True)
    with pytest.raises(ConfigError, match="keep_done_s"):
        admin.change_topic("news", keep_done_s=0)
    with pytest.raises(ConfigError, match="no priority levels"):
        admin.change_topic("news", priorities=10)
    admin.create_topic("plain")
    with pytest.raises(ConfigError, match="is a cluster topic"):
        admin.readers.forget("plain")
    assert admin.readers.list("plain") == []
    with pytest.raises(UnknownReader):
        admin.readers.forget("news", "nobody/w/0")
    with pytest.raises(UnknownTopic):
        admin.readers.list("nowhere")


def test_an_app_that_listens_creates_the_topic_for_broadcasts(stream: Stream) -> None:
    app = stream.app()
    _listen(app, [])
    assert app.stream.catalog.topic("news").kind is TopicKind.BROADCAST
    other = stream.app()
    assert other.stream.catalog.topic("orders").kind is TopicKind.CLUSTER
    _listen(other, [], topic="orders")
    reader = BroadcastReader(
        other.stream, other.settings, other.stream.decoder, "w/0", print, lambda name, e: None, IsolationGate()
    )
    with pytest.raises(ConfigError, match="'orders': is a cluster topic"):
        reader.take_on(other, other.registry.broadcasts.values())


def test_a_few_messages_are_read_by_one_statement_if_none_is_missing_or_large(stream: Stream) -> None:
    app, topic = _news(stream), stream.topic("bus", kind=TopicKind.BROADCAST)
    for body in ("one", "two", "x" * 1000):
        app.send("bus", body)

    def read(stop: int, limit_bytes: int = 1 << 20) -> list[int] | None:
        rows = broadcast.read_few(stream.session, topic, 0, range(1, stop), limit_bytes)
        return None if rows is None else [row[0] for row in rows]

    assert read(3) == [1, 2]
    assert read(4) == [1, 2, 3]
    assert read(4, limit_bytes=2000) is None, "one is larger than its share"
    assert read(5) is None, "one is not there yet"
    stream.rows("UPDATE ems_message SET kind = 'tombstone' WHERE `offset` = 2")
    assert read(3) is None
