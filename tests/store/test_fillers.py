"""The row at offset 0 behind each partition fills pages, and nobody takes it for a part of the stream."""

import pytest

from emsworker.admin import Admin
from emsworker.admin.monitoring import Monitoring
from emsworker.arrow import scan
from emsworker.core.errors import UnknownMessage
from emsworker.core.offsets import OffsetRange
from emsworker.store.inspect.monitoring import list_extents
from emsworker.store.stream import search
from tests.support import rows
from tests.support.streams import Stream

PARTITIONS, LOG_START = 3, 5
FILLERS = "SELECT `partition` FROM ems_message WHERE `offset` = 0 ORDER BY topic_id, `partition`"


def test_every_partition_has_one_behind_it(stream: Stream) -> None:
    admin = Admin(stream.app())
    admin.create_topic("t", partitions=2)
    assert stream.rows(FILLERS) == [(1,), (2,)]
    admin.change_topic("t", partitions=4)
    assert stream.rows(FILLERS) == [(1,), (2,), (3,), (4,)]
    admin.delete_topic("t")
    assert stream.rows(FILLERS) == []
    admin.create_topic("urgent", priorities=2)
    assert stream.rows(FILLERS) == [(1,), (5001,)]


@pytest.mark.parametrize("messages", [0, 2])
def test_the_ends_of_a_trimmed_topic_do_not_know_them(stream: Stream, messages: int) -> None:
    app = stream.app()
    topic = stream.topic(partitions=PARTITIONS)
    group = stream.group(topic)
    for partition in range(PARTITIONS):
        for number in range(LOG_START - 1 + messages):
            app.send("t", number, partition=partition)
    rows.trim(stream.rows, LOG_START)
    rows.set_cursor(stream.rows, LOG_START)
    end = LOG_START + messages
    numbers = range(PARTITIONS)
    assert [(one.log_start, one.end) for one in scan.list_bounds(stream.session, topic.id)] == [(LOG_START, end)] * 3
    assert search.list_extents(stream.session, topic.id) == [OffsetRange(topic.id, n, LOG_START, end) for n in numbers]
    assert [(one.log_start, one.end) for one in list_extents(stream.session)] == [(LOG_START, end)] * 3
    admin, monitoring = Admin(app), Monitoring(app)
    assert admin.count_messages(topic) == monitoring.size("t").messages == messages * PARTITIONS
    assert monitoring.lag()[0].lag == messages * PARTITIONS
    for newest in (True, False):
        assert len(admin.lists.messages("t", newest=newest).rows) == messages * PARTITIONS
    for name, place in (("first", LOG_START), ("last", end)):
        later = stream.group(topic, name) if name == "first" else admin.create_group("t", name, from_start=False)
        assert [stream.cursor(later, partition) for partition in numbers] == [place] * 3
    with pytest.raises(UnknownMessage):
        monitoring.trace_at("t", 1, 0)
    assert {move.to for move in admin.reset_group("t", group.name, "latest", dry_run=True)} == {end}
    assert admin.purge_topic("t").messages == messages * PARTITIONS
    assert stream.rows(FILLERS) == [(1,), (2,), (3,)]
