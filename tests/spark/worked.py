"""A stream that a real worker has worked on, and what plain Python makes of its rows: the reports are compared with it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from emsworker.admin import Admin
from emsworker.core.codec import decode_headers
from emsworker.core.ids import uid_text
from emsworker.local import LocalDatabase as Server
from tests.process.stream import Stream, open_stream

ORDERS, IDLE = 60, 3
APP = "tests.spark.apps.shop:app"
Place = tuple[str, int, int]


def micros(time: datetime) -> int:
    """Microseconds since 1970."""
    whole = time.replace(tzinfo=UTC, microsecond=0)
    return int(whole.timestamp()) * 1_000_000 + time.microsecond


@dataclass(frozen=True)
class Sent:
    """A message."""

    uid: str
    task: str | None
    headers: dict[str, str]
    born: int
    size: int
    producer: str
    tag: bytes | None

    def is_of(self, group: str) -> bool:
        """Whether the filter of a group takes it; there is one in the shop."""
        return group != "export" or (self.tag == b"new" and self.headers.get("region") == "eu")


class Worked:
    """The rows of the stream, read by SQL of the tests' own; times in microseconds since 1970."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    @cached_property
    def messages(self) -> dict[Place, Sent]:
        """By their places."""
        rows = self.stream.rows(
            "SELECT t.name, m.`partition`, m.`offset`, m.uid, m.headers, m.born_at, m.size, m.producer_id, m.tag "
            "FROM ems_message m JOIN ems_topic t ON t.id = m.topic_id WHERE m.kind = 'message'"
        )
        found = {}
        for topic, partition, offset, uid, raw, born, size, producer, tag in rows:
            headers = dict(decode_headers(raw))
            found[topic, partition, offset] = Sent(
                uid_text(uid), headers.get("ems-task"), headers, micros(born), size, producer, tag
            )
        return found

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """The groups of each topic."""
        found: dict[str, list[str]] = {}
        for topic, group in self.stream.rows(
            "SELECT t.name, g.name FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id"
        ):
            found.setdefault(topic, []).append(group)
        return found

    @cached_property
    def claims(self) -> dict[tuple[str, Place], list[tuple[Any, ...]]]:
        """Each message's claims in a group: claimed at, progress at, client, its messages that it finished, and whether this is one."""
        rows = self.stream.rows(
            "SELECT g.name, t.name, c.`partition`, c.lo, c.hi, c.acked_to, c.claimed_at, c.progress_at, c.client_id "
            "FROM ems_claim c JOIN ems_group g ON g.id = c.group_id JOIN ems_topic t ON t.id = g.topic_id "
            "WHERE c.source = 'stream' AND c.client_id IS NOT NULL"
        )
        found: dict[tuple[str, Place], list[tuple[Any, ...]]] = {}
        for group, topic, partition, lo, hi, acked_to, claimed, progress, client in rows:
            own = [at for at in range(lo, hi + 1) if self.messages[topic, partition, at].is_of(group)]
            for offset in own:
                finished = sum(at <= acked_to for at in own)
                one = (micros(claimed), micros(progress), client, finished, offset <= acked_to)
                found.setdefault((group, (topic, partition, offset)), []).append(one)
        return found

    @cached_property
    def attempts(self) -> dict[tuple[str, Place], list[tuple[Any, ...]]]:
        """Each message's attempts in a group: ended at, attempt, outcome, ran ms, client; in order."""
        rows = self.stream.rows(
            "SELECT g.name, t.name, a.`partition`, a.`offset`, a.ended_at, a.attempt, a.outcome, a.ran_ms, a.client_id "
            "FROM ems_attempt a JOIN ems_group g ON g.id = a.group_id JOIN ems_topic t ON t.id = g.topic_id "
            "ORDER BY a.ended_at, a.attempt"
        )
        found: dict[tuple[str, Place], list[tuple[Any, ...]]] = {}
        for group, topic, partition, offset, ended, *rest in rows:
            found.setdefault((group, (topic, partition, offset)), []).append((micros(ended), *rest))
        return found

    @cached_property
    def dead(self) -> dict[tuple[str, Place], tuple[int, str, str]]:
        """Dead letters: when, reason, error."""
        rows = self.stream.rows(
            "SELECT g.name, t.name, d.`partition`, d.`offset`, d.dead_at, d.reason, d.error "
            "FROM ems_dead d JOIN ems_group g ON g.id = d.group_id JOIN ems_topic t ON t.id = g.topic_id"
        )
        return {(g, (t, p, o)): (micros(at), reason, error) for g, t, p, o, at, reason, error in rows}

    def ended(self, group: str, place: Place) -> int | None:
        """When a message ended in a group, if it has."""
        if (group, place) in self.dead:
            return self.dead[group, place][0]
        if own := self.attempts.get((group, place)):
            return int(own[-1][0])
        finished = [claim[1] for claim in self.claims.get((group, place), []) if claim[4]]
        return max(finished, default=None)

    def everywhere(self) -> Iterator[tuple[str, Place, Sent]]:
        """Each message with each group of its topic that wants it."""
        for place, sent in self.messages.items():
            for group in filter(sent.is_of, self.groups.get(place[0], [])):
                yield group, place, sent


def nearest_rank(values: Sequence[float], share: float) -> float:
    """The smallest value that at least that share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1_000_000) * len(ordered) // 1_000_000) - 1)]


@contextmanager
def worked_stream(server: Server, folder: Path) -> Iterator[Worked]:
    """Orders, worked on by a worker of two processes with two threads each until nothing is left to be done.

    Afterwards a group that nobody works for is given some messages, so that there is a lag.
    """
    with open_stream(server, folder) as stream:
        admin = Admin(stream.app)
        for topic in ("orders", "invoices", "mails", "idle"):
            admin.create_topic(topic, partitions=2)
        admin.create_group("idle", "nobody")
        worker = stream.worker(APP, processes=2, threads=2)
        for n in range(ORDERS):
            headers = {"ems-task": "order", "region": "us" if n % 4 == 1 else "eu"}
            stream.app.publisher.send(
                "orders", [[n], {}], headers=headers, key=f"k{n % 5}", tag=(None, "new", "old")[n % 3]
            )
        stream.wait_settled(60)
        assert worker.stop() == 0
        stream.send("idle", [{"n": n} for n in range(IDLE)])
        yield Worked(stream)
