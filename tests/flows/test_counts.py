"""What ``ems check`` and Prometheus tell of flows."""

import pytest

from emsworker.admin.check import check
from emsworker.local import LocalDatabase
from emsworker.monitoring.metrics import StreamMetrics
from emsworker.store.engine.database import Database
from tests.process.stream import Stream
from tests.support.roles import users


def _flow(stream: Stream, number: int, state: str, waits: str | None = None, age_s: int = 0) -> None:
    stream.rows(
        "INSERT INTO ems_flow (id, `key`, name, version, topic_id, state, owner, headers, args, waits, started_at, "
        "changed_at) VALUES (%s, %s, 'f', 1, 1, %s, '', '', '', %s, NOW(6), NOW(6) - INTERVAL %s SECOND)",
        number,
        f"key-{number}",
        state,
        waits,
        age_s,
    )


def test_what_needs_somebody_is_told(stream: Stream, server: LocalDatabase) -> None:
    with users(server, stream.url) as make:
        for role in ("viewer", "operator"):
            found = {one.value for one in check(make(role), None, environ={}) if one.name == "flows"}
            assert found == {"none that has not ended"}, role
        _flow(stream, 1, "failed")
        _flow(stream, 2, "waiting", "a worker with version 2")
        _flow(stream, 3, "waiting", "signal paid 17")
        _flow(stream, 4, "ready", age_s=3600)
        _flow(stream, 5, "ready")
        _flow(stream, 6, "done")
        found = {one.value for one in check(make("viewer"), None, environ={}) if one.name == "flows"}
    assert {"1 failed, 2 ready, 2 waiting", "1 flow failed", "1 flow of f, a worker with version 2"} < found
    assert len(found) == 4 and any("f is ready to run since 1h" in value for value in found)


def test_the_metrics_count_by_name_state_and_reason(stream: Stream, server: LocalDatabase) -> None:
    pytest.importorskip("prometheus_client")
    _flow(stream, 1, "failed", age_s=60)
    _flow(stream, 2, "waiting", "signal paid 17")
    _flow(stream, 3, "waiting", "signal paid 18")
    _flow(stream, 4, "waiting", "sleep")
    with users(server, stream.url) as make:
        families = [*StreamMetrics(Database(make("viewer"))).collect()]
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("ems_flows")
    }
    assert found["ems_flows", "f", "waiting"] == 3 and found["ems_flows", "f", "failed"] == 1
    assert 60 <= found["ems_flows_oldest_seconds", "f", "failed"] < 120
    assert found["ems_flows_waiting", "f", "signal"] == 2 and found["ems_flows_waiting", "f", "sleep"] == 1
