"""Lists of flows read bounded parts by an index, whatever there is, and every flow comes once."""

from datetime import UTC, datetime, timedelta

from emsworker.flows.operating.admin import FlowFilter, Flows
from emsworker.store.engine.database import Database
from emsworker.store.engine.sql import Sql
from tests.process.stream import Stream

_COUNT = 3300


def _fill(stream: Stream) -> None:
    """Flows that change at few different times, every eleventh of which has failed; one is of another function."""
    for begin in range(1, _COUNT + 1, 300):
        rows = ", ".join(
            f"({n}, 'key-{n}', '{'rare' if n == 11 else 'f'}', 1, 1, '{'done' if n % 11 else 'failed'}', '', '', '', "
            f"'2026-01-01', '2026-01-01' + INTERVAL {n // 500} HOUR)"
            for n in range(begin, begin + 300)
        )
        stream.rows(
            "INSERT INTO ems_flow (id, `key`, name, version, topic_id, state, owner, headers, args, started_at, "
            f"changed_at) VALUES {rows}"
        )
        stream.rows(f"INSERT INTO ems_flow_attribute SELECT 'half', MOD(id, 2), id FROM ems_flow WHERE id >= {begin}")
    stream.rows("ANALYZE TABLE ems_flow, ems_flow_attribute")


def _all(flows: Flows, only: FlowFilter, limit: int) -> list[int]:
    found, after = list[int](), None
    while True:
        page = flows.page(only, after=after, limit=limit)
        assert len(page.rows) <= limit
        found += [flow.number for flow in page.rows]
        after = page.after
        if after is None:
            return found


def _reads(database: Database) -> int:
    rows = database.thread_session().rows(Sql("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(count) for _, count in rows)


def test_every_flow_comes_once_by_pages(stream: Stream) -> None:
    _fill(stream)
    flows = Flows(Database(stream.url))
    everything = _all(flows, FlowFilter(), 700)
    assert sorted(everything) == list(range(1, _COUNT + 1))
    assert everything == sorted(everything, key=lambda n: (n // 500, n), reverse=True)
    failed = _all(flows, FlowFilter(states=["failed"]), 7)
    assert sorted(failed) == list(range(11, _COUNT + 1, 11))
    assert _all(flows, FlowFilter(name="rare"), 50) == [11]
    halves = FlowFilter(attributes={"half": "1"}, states=["failed"])
    assert _all(flows, halves, 40) == list(range(_COUNT - 11, 0, -22))
    assert _all(flows, FlowFilter(attributes={"half": "1", "no": "1"}), 40) == []
    begin = datetime(2026, 1, 1, 5, tzinfo=UTC)
    assert set(_all(flows, FlowFilter(since=begin, until=begin + timedelta(minutes=1)), 90)) == set(range(2500, 3000))


def test_a_page_costs_the_same_whatever_there_is(stream: Stream) -> None:
    _fill(stream)
    database = Database(stream.url)
    flows = Flows(database)
    for only in (FlowFilter(), FlowFilter(states=["failed"]), FlowFilter(since=datetime(2026, 1, 1, tzinfo=UTC))):
        flows.page(only, limit=10)
        before = _reads(database)
        page = flows.page(only, limit=10)
        assert len(page.rows) == 10 and _reads(database) - before < 200, only
        before = _reads(database)
        flows.page(only, after=page.after, limit=10)
        assert _reads(database) - before < 200, only
    before = _reads(database)
    assert sum(one.count for one in flows.counts(FlowFilter(), most=100)) == 200
    assert _reads(database) - before < 1000
