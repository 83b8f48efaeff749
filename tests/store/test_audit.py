"""The audit: a row for each transaction of an action, which nobody changes, and which the beat deletes when it is old."""

import pytest

from emsworker.admin import Admin
from emsworker.admin.audit import Audit
from emsworker.beat.expiry import sweep_audit
from emsworker.core.config import Settings
from emsworker.core.errors import Conflict, EmsError
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql
from tests.support.streams import Stream


def test_each_transaction_adds_its_row_and_the_action_is_their_sum(stream: Stream) -> None:
    app = stream.app()
    stream.group(stream.topic("t"))
    app.send_many("t", range(2500))
    admin = Admin(app)
    audit = Audit(app.stream.database)
    with audit.record("ann", "purge", "t", "all") as first:
        admin.purge_topic("t")
    assert stream.rows("SELECT step, changed FROM ems_audit ORDER BY step") == [(1, 1000), (2, 1000), (3, 500)]
    with audit.record("bob", "purge", "t"):
        admin.purge_topic("t")
    with audit.record("bob", "cancel", "t") as second:
        admin.cancel("t", app.send("t", 1).id)
    listed = audit.list()
    assert [(one.id, one.actor, one.changed, one.steps) for one in listed] == [
        (second, "bob", 1, 1),
        (first, "ann", 2500, 3),
    ]
    assert audit.get(first) == listed[1] and listed[1].begun_at < listed[1].ended_at
    assert audit.list(after=second) == listed[1:] and audit.list(limit=1) == listed[:1]


def test_a_transaction_that_is_run_again_leaves_one_row(stream: Stream) -> None:
    app = stream.app()
    tries = iter([Conflict("deadlock"), None])

    def work(session: Session) -> int:
        session.rows(Sql("SELECT 1"))
        if (error := next(tries)) is not None:
            raise error
        return 1

    with Audit(app.stream.database).record("ann", "change", "t"):
        app.stream.database.call(lambda session: session.transaction(work))
    assert stream.rows("SELECT changed FROM ems_audit") == [(1,)]


def test_what_is_rolled_back_leaves_none(stream: Stream) -> None:
    app = stream.app()
    with pytest.raises(EmsError), Audit(app.stream.database).record("ann", "change", "t"):
        Admin(app).change_group("t", "missing", paused=True)
    assert stream.rows("SELECT * FROM ems_audit") == []


def test_the_beat_deletes_what_is_old(stream: Stream) -> None:
    stream.rows(
        "INSERT INTO ems_audit SELECT UNHEX(CONCAT(LPAD(HEX(FLOOR((UNIX_TIMESTAMP(NOW(3)) - d.days * 86400) * 1000)), 12, '0'), "
        "REPEAT('5', 20))), s.step, 'ann', 'purge', 't', '', 1, NOW(6) - INTERVAL d.days DAY "
        "FROM (SELECT 1 AS days UNION ALL SELECT 9 UNION ALL SELECT 11) d, (SELECT 1 AS step UNION ALL SELECT 2) s"
    )
    left = "SELECT COUNT(*) FROM ems_audit"
    assert sweep_audit(stream.session, Settings(audit_keep_s=0)) > 0 and stream.value(left) == 6
    sweep_audit(stream.session, Settings())
    assert stream.value(left) == 6
    sweep_audit(stream.session, Settings(audit_keep_s=10 * 86400))
    assert stream.value(left) == 4
    sweep_audit(stream.session, Settings(audit_keep_s=86300))
    assert stream.value(left) == 0
