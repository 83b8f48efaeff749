"""A client dies while the server works on its packet: the server goes on without it, to the COMMIT."""

import contextlib

from pymysql.constants import COMMAND

from emsworker.core.errors import ConnectionLost
from emsworker.store.engine.session import Result, Session
from emsworker.store.groups import claims
from tests.support.streams import Stream
from tests.support.waiting import until

TRIES = 150


class Dying(Session):
    """Sends a packet and is gone."""

    def send(self, sql: str) -> list[Result]:
        connection = self._open()
        connection._execute_command(COMMAND.COM_QUERY, sql)
        connection._force_close()
        self.drop()
        raise ConnectionLost("died")


def test_a_claim_whose_client_died_in_the_packet_has_moved_its_cursor(stream: Stream) -> None:
    """MySQL answers -1 to ROW_COUNT() then: a claim that hung on it stood without its cursor, and was run twice."""
    topic = stream.topic()
    stream.app().send_many("t", [0] * 10 * TRIES)
    group, me = stream.group(topic), stream.client()
    for _ in range(TRIES):
        session = Dying(stream.session._url, stream.session._nodes)
        with contextlib.suppress(ConnectionLost):
            claims.take_range(session, stream.claimant(topic, group, me, 3), 0, wait=True)
    _wait_until_alone(stream)
    taken = stream.rows("SELECT lo, hi FROM ems_claim ORDER BY lo, hi")
    assert taken
    edges = [1, *(hi + 1 for _, hi in taken)]
    assert [lo for lo, _ in taken] == edges[:-1], "no offset in two claims, none in no claim"
    assert stream.value("SELECT next_offset FROM ems_cursor") == edges[-1]


def test_an_adoption_whose_client_died_in_the_packet_leaves_no_gap(stream: Stream) -> None:
    topic = stream.topic()
    stream.app().send_many("t", [0] * 500)
    group, me = stream.group(topic), stream.client()
    stream.take(topic, group, me, 500)
    stream.expire(me)
    stream.recover()
    again = stream.client()
    for _ in range(TRIES):
        with contextlib.suppress(ConnectionLost):
            claims.take_waiting(
                Dying(stream.session._url, stream.session._nodes), stream.claimant(topic, group, again, 3)
            )
    _wait_until_alone(stream)
    found = stream.rows("SELECT lo, hi FROM ems_claim ORDER BY lo, hi")
    edges = [1, *(hi + 1 for _, hi in found)]
    assert [lo for lo, _ in found] == edges[:-1]
    assert edges[-1] == 501


def _wait_until_alone(stream: Stream) -> None:
    """Until the server has done with the dead clients' packets."""
    busy = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND = 'Query' AND ID <> CONNECTION_ID()"
    until(lambda: stream.value(busy) == 0, 20, "the packets of the dead clients are done")
