"""Checks of the stream's own log: no offset claimed twice, acknowledged by its owner, no hole, no client left over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from emsworker.chaos.facts import Facts
from emsworker.chaos.report import Kind, Violation
from emsworker.extending.stream import ClaimSnapshot


def check_log(facts: Facts) -> Iterator[Violation]:
    """Check the tables of the stream, and find clients that acknowledged messages that they had not run."""
    yield from _claimed_twice(facts)
    yield from _not_the_owner(facts)
    yield from _holes(facts)
    for client_id, over_s in facts.snapshot.clients.items():
        if over_s > facts.rules.client_grace_s:
            yield Violation(Kind.CLIENT_LEFT, client_id, f"its lease is over for {over_s:.1f} s, and its row is there")


def _claimed_twice(facts: Facts) -> Iterator[Violation]:
    """Find claims that overlap: each offset belongs to one claim of a group."""
    last: dict[tuple[int, int], ClaimSnapshot] = {}
    for claim in sorted(facts.snapshot.claims, key=lambda claim: claim.lo):
        if claim.source != "stream":
            continue
        where = claim.group_id, claim.partition
        before = last.get(where)
        if before is not None and claim.lo <= before.hi and not _claimed_again(facts, before, claim):
            text = " and ".join(f"claimed by {one.client_id} as {one.lo}..{one.hi}" for one in (before, claim))
            yield Violation(Kind.CLAIMED_TWICE, _at(facts, claim, claim.lo), text, _group(facts, claim))
        if before is None or claim.hi > before.hi:
            last[where] = claim


def _claimed_again(facts: Facts, one: ClaimSnapshot, other: ClaimSnapshot) -> bool:
    """Return whether operations handed out all common offsets of two claims again; false if both claims are live."""
    if one.state != "done" and other.state != "done":
        return False
    group = facts.snapshot.groups[one.group_id]
    common = range(max(one.lo, other.lo), min(one.hi, other.hi) + 1)
    where = facts.snapshot.topics[group.topic_id], group.name, one.partition
    place = group.topic_id, one.partition
    return all(
        facts.operations.again(*where, offset) or facts.kind_at(place[0], (place[1], offset)) == "cancelled"
        for offset in common  # a replayed range may span a cancelled message, which nothing runs
    )


def _not_the_owner(facts: Facts) -> Iterator[Violation]:
    ran: dict[tuple[str, str, int, int], set[int]] = defaultdict(set)
    for run in facts.history.runs:
        ran[run.topic, run.group, run.partition, run.offset].add(run.pid)
    for claim in facts.snapshot.claims:
        if claim.source != "stream" or claim.client_id is None:
            continue
        owner = int(claim.client_id.split("-")[1])
        topic = facts.snapshot.topics.get(facts.snapshot.groups[claim.group_id].topic_id, "")
        for offset in range(claim.lo, claim.acked_to + 1):
            pids = ran.get((topic, _group(facts, claim), claim.partition, offset))
            place = claim.group_id, claim.partition, offset
            if place in facts.snapshot.attempted or place in facts.snapshot.retries:
                continue  # detached for a later run, which any client may do
            if facts.kind_at(facts.snapshot.groups[claim.group_id].topic_id, place[1:]) == "cancelled":
                continue  # run before that, handed out again by a reset, and acknowledged without a run
            if pids and owner not in pids:
                text = f"{claim.client_id} acknowledged it, and only {', '.join(map(str, sorted(pids)))} ran it"
                yield Violation(Kind.NOT_THE_OWNER, _at(facts, claim, offset), text, _group(facts, claim))


def _holes(facts: Facts) -> Iterator[Violation]:
    for (topic_id, partition), messages in facts.snapshot.messages.items():
        topic, log_start = facts.snapshot.topics[topic_id], facts.snapshot.log_starts[topic_id, partition]
        kept = sorted(offset for offset in messages if offset >= log_start)
        cursor = max((facts.snapshot.cursors.get((group, partition), 0) for group in facts.groups_of(topic)), default=0)
        for before, after in pairwise([log_start - 1, *kept]):
            if after == before + 1:
                continue
            where = f"{topic}/{partition}/{before + 1}..{after - 1}"
            if cursor > before + 1:
                yield Violation(Kind.HOLE, where, f"a cursor is at {cursor}, past offsets that are empty")
            elif facts.rules.settled and facts.groups_of(topic):  # readers close holes; without a group there is none
                yield Violation(Kind.HOLE, where, "the offsets are empty and were not closed")


def _at(facts: Facts, claim: ClaimSnapshot, offset: int) -> str:
    topic = facts.snapshot.topics[facts.snapshot.groups[claim.group_id].topic_id]
    return f"{topic}/{claim.partition}/{offset}"


def _group(facts: Facts, claim: ClaimSnapshot) -> str:
    return facts.snapshot.groups[claim.group_id].name
