"""Whether taking work costs the same however much there is, was and will be: the store's own packets, timed.

A claim carries the end of the claim before it, as in a worker, so it is one round trip and one commit. A look is the
question that an idle worker asks: what could these groups take?
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from statistics import median

from bench import consume, worker
from bench.app import build
from bench.load import BODY
from bench.stage import NotRight, Stage
from bench.studies.backlog import drain, extend
from bench.studies.finding import Finding, Lab, Study
from emsworker.core.codec import Decoder
from emsworker.core.flush import Flush
from emsworker.core.model import Claim, Group, Topic
from emsworker.core.work import Claimant
from emsworker.store import topics
from emsworker.store.cluster import clients
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import claims, progress

_BATCH, _CLAIMS = 50, 40
_LEASE_S, _TIMEOUT_S = 3600.0, 3600.0
_BYTES = 4 << 20
_BETWEEN_S = 5.0
_GROUPS, _PARTITIONS = (1, 10, 100), (1, 64)
_MOST_RETRIED = 100_000  # a storm writes six rows a message


@dataclass(frozen=True)
class _Case:
    """A topic with its groups, and where a measurement claims in turn."""

    finding: Finding
    topic: Topic
    groups: Sequence[Group]


def _groups(session: Session, topic: Topic, count: int) -> list[Group]:
    return [
        topics.create_group(session, topic, f"g{n}", timeout_s=_TIMEOUT_S, ladder="1s 2s", max_attempts=3)
        for n in range(count)
    ]


@contextmanager
def _prepared(lab: Lab) -> Iterator[tuple[Stage, Session, str]]:
    with lab.servers.stage(lab.stage_size) as stage, Database(stage.url).session() as session:
        client = f"bench-{uuid.uuid4().hex}"
        clients.register(session, [client], f"process-{client}", "bench", _LEASE_S)
        yield stage, session, client


def _topic(stage: Stage, session: Session, name: str, partitions: int = 1) -> Topic:
    """A topic with one message, as the public API sends it."""
    topic = topics.create_topic(session, name, partitions=partitions)
    app = build(url=stage.url).app
    app.send(name, BODY, partition=0)
    app.close()
    return topic


def _take(session: Session, case: _Case, client: str) -> float:
    """The median of some claims in microseconds, each of the next group and partition in turn."""
    places = cycle([(group, partition) for group in case.groups for partition in range(case.topic.partitions)])
    took: list[float] = []
    before: dict[tuple[int, int], Flush] = {}
    while len(took) < _CLAIMS:
        group, partition = next(places)
        last = [ended for ended in [before.pop((group.id, partition), None)] if ended is not None]
        claimant = Claimant(case.topic, group, client, _BATCH, _BYTES, Decoder())
        began = time.perf_counter()
        claim = claims.take_range(session, claimant, partition, last)
        if last:
            took.append((time.perf_counter() - began) * 1e6)
        if not isinstance(claim, Claim) or len(claim.messages) != _BATCH:
            raise NotRight(f"{case.finding.case}: a claim of {_BATCH} messages gave {claim!r:.200}")
        before[group.id, partition] = Flush(claim, case.topic.id, claim.hi, _TIMEOUT_S, finished=True)
    for flush in before.values():
        progress.flush(session, flush)
    return median(took)


def _look(session: Session, case: _Case) -> float:
    group_ids, took = [group.id for group in case.groups], []
    for _ in range(_CLAIMS):
        began = time.perf_counter()
        found = claims.find_work(session, group_ids).work
        took.append((time.perf_counter() - began) * 1e6)
        if len(found) != len(group_ids):
            raise NotRight(f"{case.finding.case}: a look at {len(group_ids)} groups found work for {len(found)}")
    return median(took)


def _measure(lab: Lab, session: Session, client: str, cases: Sequence[_Case]) -> list[Finding]:
    for case in cases:
        _take(session, case, client)  # pages are read and plans are made
    for _ in range(lab.size.repeats):
        for case in cases:
            case.finding.add(claim_us=_take(session, case, client), look_at_all_groups_us=_look(session, case))
    return [case.finding for case in cases]


def backlog(lab: Lab) -> list[Finding]:
    """However many messages wait."""
    with _prepared(lab) as (stage, session, client):
        cases = []
        for waiting in lab.size.backlogs:
            topic = _topic(stage, session, f"t{waiting}")
            extend(stage, topic.id, waiting + _BATCH * _CLAIMS * (lab.size.repeats + 2))  # so many wait to the end
            cases.append(_Case(Finding("flat/backlog", f"{waiting:,} waiting"), topic, _groups(session, topic, 1)))
        return _measure(lab, session, client, cases)


def groups(lab: Lab) -> list[Finding]:
    """However many groups read the topic."""
    with _prepared(lab) as (stage, session, client):
        cases = []
        for count in _GROUPS:
            topic = _topic(stage, session, f"t{count}")
            extend(stage, topic.id, lab.size.backlogs[0] * 5)
            cases.append(_Case(Finding("flat/groups", f"{count} groups"), topic, _groups(session, topic, count)))
        return _measure(lab, session, client, cases)


def partitions(lab: Lab) -> list[Finding]:
    """However many partitions the topic has, with the same number of messages in all."""
    with _prepared(lab) as (stage, session, client):
        cases = []
        for count in _PARTITIONS:
            topic = _topic(stage, session, f"t{count}", count)
            for partition in range(count):
                extend(stage, topic.id, lab.size.backlogs[0] * 20 // count, partition)
            cases.append(_Case(Finding("flat/partitions", f"{count} partitions"), topic, _groups(session, topic, 1)))
        return _measure(lab, session, client, cases)


_NUMBERS = "(" + " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10)) + ")"
_SEQUENCE = "(SELECT {} AS n FROM {}) s".format(
    "1 + " + " + ".join(f"d{n}.n * {10**n}" for n in range(6)), ", ".join(f"{_NUMBERS} d{n}" for n in range(6))
)
_DONE = f"""INSERT INTO ems_claim
(group_id, `partition`, lo, claim_id, hi, acked_to, state, source, client_id, claimed_at, progress_at, deadline_at)
SELECT %s, 0, n, n, n, n, 'done', 'stream', 'nobody', NOW(6), NOW(6), NOW(6)
FROM {_SEQUENCE} WHERE n <= %s ORDER BY n"""
_DEAD = f"""INSERT INTO ems_dead
(group_id, `partition`, `offset`, uid, headers, body, born_at, producer_id, dead_at, attempts, reason, error)
SELECT %s, 0, n, UNHEX(LPAD(HEX(n), 32, '0')), '', REPEAT('x', 200), NOW(6), '', NOW(6), 16, 'Error', 'Error'
FROM {_SEQUENCE} WHERE n <= %s ORDER BY n"""


def history(lab: Lab) -> list[Finding]:
    """However much the group has done and has failed to do."""
    with _prepared(lab) as (stage, session, client):
        cases = []
        for past in (0, lab.size.history):
            topic = _topic(stage, session, f"t{past}")
            [group] = _groups(session, topic, 1)
            extend(stage, topic.id, max(past, lab.size.history) + lab.size.backlogs[0] * 2)
            with stage.connect() as connection, connection.cursor() as cursor:
                cursor.execute(_DONE, (group.id, past))
                cursor.execute(_DEAD, (group.id, past))
                cursor.execute("UPDATE ems_cursor SET next_offset = %s WHERE group_id = %s", (past + 1, group.id))
            case = f"{past:,} done claims and dead letters"
            cases.append(_Case(Finding("flat/history", case), topic, [group]))
        return _measure(lab, session, client, cases)


def snapshot(lab: Lab) -> list[Finding]:
    """A drain beside somebody's old snapshot, which keeps the server from purging what is updated and deleted."""
    alone, beside = Finding("flat/snapshot", "alone"), Finding("flat/snapshot", "beside an open snapshot")
    shape = worker.Shape("noop")
    with lab.servers.stage(lab.stage_size) as stage:
        tasks = build(url=stage.url)
        tasks.noop.delay(0)
        topic_id = tasks.app.stream.catalog.topic("noop").id
        tasks.app.close()
        drain(stage, topic_id, lab.size.drained // 4, shape)
        for _ in range(lab.size.repeats):
            alone.add(messages_per_s=drain(stage, topic_id, lab.size.drained, shape))
        with stage.connect(autocommit=False) as other, other.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            until = time.monotonic() + lab.size.snapshot_s
            while time.monotonic() < until:  # something must be there that could be purged
                drain(stage, topic_id, lab.size.drained // 4, shape)
                time.sleep(_BETWEEN_S)
            for _ in range(lab.size.repeats):
                beside.add(messages_per_s=drain(stage, topic_id, lab.size.drained, shape))
    return [alone, beside]


def retries(lab: Lab) -> list[Finding]:
    """A storm: each message fails once, however many there are, and is retried while the others fail."""
    counts = [count for count in lab.size.backlogs if count <= _MOST_RETRIED]
    findings = {count: Finding("flat/retries", f"{count:,} messages fail once") for count in counts}
    for _ in range(lab.size.repeats):
        for count, finding in findings.items():
            with lab.servers.stage(lab.stage_size) as stage:
                tasks = build(url=stage.url)
                tasks.flaky.delay(0)
                topic_id = tasks.app.stream.catalog.topic("flaky").id
                tasks.app.close()
                extend(stage, topic_id, count - 1)
                with worker.running(stage, worker.Shape("flaky")):
                    consume.wait_until_drained(stage, count)
                    consume.wait_until_retried(stage, count)
                finding.add(messages_per_s=count / consume.took_s(stage))
    return list(findings.values())


STUDIES = (
    Study("flat/backlog", "claims at growing backlogs", backlog),
    Study("flat/groups", "claims with more and more groups", groups),
    Study("flat/partitions", "claims with more partitions", partitions),
    Study("flat/history", "claims of a group with a long past", history),
    Study("flat/retries", "storms of messages that fail once", retries),
    Study("flat/snapshot", "a drain beside an old snapshot", snapshot),
)
