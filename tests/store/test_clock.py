"""Times that a server wrote while its clock was ahead, and that would stand still until the time has caught up."""

from datetime import timedelta

from emsworker.beat.expiry import correct_times
from emsworker.core.config import Settings
from emsworker.core.schedule import Declared
from emsworker.store.cluster import clients, schedules
from emsworker.store.engine.schema import server_now
from tests.support.streams import Stream


def test_the_lease_of_a_dead_client_ends_after_its_length(stream: Stream) -> None:
    clients.register(stream.session, ["dead"], "p", "w", 15)
    clients.register(stream.session, ["lives"], "p", "w", 15)
    stream.rows(
        "UPDATE ems_client SET renewed_at = renewed_at + INTERVAL 5 HOUR, expires_at = expires_at + INTERVAL 5 HOUR "
        "WHERE client_id = 'dead'"
    )
    correct_times(stream.session, Settings())
    left = dict(
        stream.rows("SELECT client_id, TIMESTAMPDIFF(MICROSECOND, NOW(6), expires_at) / 1000000 FROM ems_client")
    )
    assert 0 < left["dead"] <= 15
    assert 0 < left["lives"] <= 15


def test_another_beat_takes_over_from_a_leader_of_the_future(stream: Stream) -> None:
    assert clients.try_to_lead(stream.session, "beat", "dead", 5)
    assert not clients.try_to_lead(stream.session, "beat", "next", 5)
    stream.rows("UPDATE ems_leader SET expires_at = expires_at + INTERVAL 5 HOUR")
    assert clients.try_to_lead(stream.session, "beat", "next", 5)


def test_a_slot_that_is_further_away_than_a_period_is_computed_again(stream: Stream) -> None:
    one = Declared("minutely", "* * * * *", "UTC", "last", "t", None, b"{}", b"")
    schedules.declare(stream.session, [one])
    (next_at,) = stream.rows("SELECT next_at FROM ems_schedule")[0]
    correct_times(stream.session, Settings())
    stream.rows("UPDATE ems_schedule SET next_at = next_at + INTERVAL 5 HOUR, next_set_at = NOW(6) + INTERVAL 5 HOUR")
    correct_times(stream.session, Settings())
    (again,) = stream.rows("SELECT next_at FROM ems_schedule")[0]
    assert next_at <= again < next_at + timedelta(minutes=2)
    assert again > server_now(stream.session).replace(tzinfo=None) - timedelta(minutes=1)
