"""A stream with something on every page of the dashboard."""

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.core.model import Failure, Outcome
from emsworker.core.run import ProgressReport
from emsworker.store.cluster import clients, schedules
from emsworker.store.groups import progress
from emsworker.store.inspect import samples
from emsworker.store.inspect.samples import Sample
from tests.support.streams import Stream, flush_of

NASTY = "<script>alert(1)</script>'\"`{{7*7}}"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/srv/shop/tasks.py", line 41, in charge\n'
    "    gateway.charge(order.card, order.total)\n"
    '  File "/srv/shop/gateway.py", line 118, in charge\n'
    "    raise CardDeclined(answer.reason)\n"
)


def furnish(stream: Stream, *, nasty: bool = False, rich: bool = False) -> Ems:
    """Fill a stream: orders that are worked on, retried and dead; delayed mails; a paused group; three days of samples.

    Args:
        nasty: every text that a user chooses has markup in it.
        rich: with more messages, and a history for the charts.
    """
    mark = NASTY if nasty else ""
    app = stream.app()
    orders, mails = stream.topic("orders", 3), stream.topic("mails")
    stream.topic("prices")
    work, audit = stream.group(orders, "workers"), stream.group(orders, "audit")
    senders = stream.group(mails, "senders")
    for number in range(240 if rich else 80):
        task = ("shop.charge", "shop.ship", "shop.invoice")[number % 3]
        body = {"order": 4700 + number, "card": {"number": "4111-1111", "owner": f"Ann{mark}"}, "total": 19.5}
        app.publisher.send("orders", body, key=f"customer-{number % 40}{mark}", tag=("new", "vip")[number % 7 == 0] + mark,
                      headers={"ems-task": task, "trace": f"t{number}{mark}"})  # fmt: skip
    app.send_many("mails", [{"to": f"customer{number}@example.com"} for number in range(30 if rich else 3)])
    for minutes in (1, 5, 90, 60 * 26):
        app.publisher.send(
            "mails", {"to": "later"}, countdown=minutes * 60, headers={"ems-task": "shop.remind"}, key="k" + mark
        )
    for table in ("ems_message", "ems_outbox"):  # no send takes such a name of a task
        _add_to_names(stream, table, mark)
    client = _client(stream, "10.0.0.7", "worker-1" + mark)
    for name in ("worker-1" + mark, "worker-2"):
        for _ in range(2):
            _client(stream, "10.0.0.7" if "1" in name else "10.0.0.8", name)
    _fail(stream, orders, work, client, mark)
    claim = stream.take(orders, work, client, batch=30, partition=1)
    report = ProgressReport.checked(claim.messages[0].uid, 1, 0.4, "page 12 of 30" + mark)
    progress.flush(stream.session, flush_of(claim, orders, claim.lo - 1, running=claim.lo, reports=[report]))
    stream.rows("UPDATE ems_group SET paused = 1 WHERE id = %s", audit.id)
    clients.try_to_lead(stream.session, "beat", "10.0.0.7-4242-beat", 3600.0)
    slot = datetime.now(UTC) + timedelta(hours=3)
    for name, spec in (("shop.tidy", "*/15 * * * *"), ("shop.report" + mark, "0 6 * * 1-5")):
        call = ("last", "mails", None, b'{"ems-task":"shop.tidy"}', b"{}")
        schedules.declare(stream.session, [schedules.Declared(name, spec, "Europe/Berlin", *call)])
    assert slot
    _alarms(stream, mark)
    _history(stream, orders.id, [work.id, audit.id], mails.id, senders.id, 72 * 3600 if rich else 60)
    return app


def _add_to_names(stream: Stream, table: str, mark: str) -> None:
    escaped = json.dumps(mark)[1:-1]
    for name in ("shop.charge", "shop.ship", "shop.invoice", "shop.remind"):
        stream.rows(f"UPDATE {table} SET headers = REPLACE(headers, %s, %s)", f'"{name}"', f'"{name}{escaped}"')


def _client(stream: Stream, ip: str, name: str) -> str:
    number = len(stream.rows("SELECT 1 FROM ems_client")) + 1
    client_id = f"{ip}-42{number}-{number:032x}-77{number:02}"
    clients.register(stream.session, [client_id], f"{ip}-42", name[:190], 3600.0)
    return client_id


def _fail(stream: Stream, orders: Any, work: Any, client: str, mark: str) -> None:
    """Of a claim: six dead letters of two classes, five retries, the rest done."""
    claim = stream.take(orders, work, client, batch=40, partition=0)
    kinds = [("shop.gateway.CardDeclined" + mark, "insufficient funds"), ("TimeoutError", "no answer in 30 s")]
    failures = []
    for number, message in enumerate(claim.messages[:11]):
        kind, text = kinds[number % 3 == 0]
        dead = "3 of 3 attempts failed" + mark if number < 6 else None
        error = f"{TRACEBACK}{kind}: {text}{mark}"
        failures.append(
            Failure(
                message.offset,
                3 if dead else 1,
                Outcome.FAILED,
                error,
                None if dead else 40.0 * number,
                dead,
                0.412,
                error_type=kind,
            )
        )
    progress.flush(stream.session, flush_of(claim, orders, claim.hi, failures=failures))


def _alarms(stream: Stream, mark: str) -> None:
    admin = Admin(stream.app())
    admin.alarms.create("backlog", on="lag", above=100, topic="orders")
    admin.alarms.create("old", on="oldest", above=600, for_s=60)
    stream.rows(
        "INSERT INTO ems_alarm (rule, topic, group_name, alarm_id, state, value, since, fired_at) "
        "VALUES ('backlog', 'orders', 'workers', %s, 'firing', 180, NOW(6) - INTERVAL 9 MINUTE, NOW(6) - INTERVAL 8 MINUTE)",
        b"a" * 16,
    )
    assert isinstance(mark, str)


def _history(stream: Stream, topic: int, groups: list[int], other: int, last: int, longest_s: int) -> None:
    """Samples of the last three hours, each ten seconds, and each ten minutes before that."""
    now = datetime.now(UTC)
    ages = [*range(longest_s, 3 * 3600, -600), *range(min(longest_s, 3 * 3600), 0, -10)]
    written = finished = 0.0
    before = ages[0] + 10
    for age in ages:
        step, before = before - age, age
        hour = (now.timestamp() - age) / 3600
        arrive = 24 + 9 * math.sin(hour / 3.82) + 4 * math.sin(hour * 9.1) + (40 if 0.5 < age / 3600 < 0.7 else 0)
        leave = 34 + 3 * math.sin(hour * 25) if written - finished > 340 else arrive * (1 + 0.06 * math.sin(hour * 40))
        written += arrive * step
        finished = min(written, finished + leave * step)
        lag = round((written - finished) / 60) + 140
        rows = [
            Sample(topic_id, group_id, lag, 30, 0, 5, 3, 6, round(lag * 60), round(written), round(finished))
            for topic_id, group_id in [(0, 0), (topic, 0), *((topic, group) for group in groups), (other, last)]
        ]
        samples.add_samples(stream.session, rows, now - timedelta(seconds=age))
