"""Retention: what nobody needs is deleted, and nothing else."""

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from emsworker import Ems
from emsworker.admin import Admin
from emsworker.admin.check import check
from emsworker.beat.retention import trim
from emsworker.consume.claim_progress import ClaimProgress, Ended
from emsworker.core.model import Claim, ClaimSource, Group, Topic, TopicKind
from emsworker.store.groups import claims, dead, progress
from emsworker.store.stream import retention
from emsworker.store.stream.messages import close_hole
from tests.support import rows
from tests.support.streams import Stream, failed, flush_of, offsets, wait_until


def keep(stream: Stream, count: int, **settings: object) -> tuple[Topic, Group]:
    """A topic with a group, and so many messages that are a day old."""
    topic = stream.topic("t", **settings)  # type: ignore[arg-type]
    group = stream.group(topic)
    stream.app().send_many("t", range(count))
    rows.age(stream.rows, 86400)
    return topic, group


def trim_all(stream: Stream) -> None:
    """The beat's service, until there is nothing to do."""
    settings = stream.app().settings
    while trim(stream.session, settings) == 0.0:
        pass


def left(stream: Stream) -> list[int]:
    return [
        offset for (offset,) in stream.rows("SELECT `offset` FROM ems_message WHERE `offset` > 0 ORDER BY `offset`")
    ]


def finish(stream: Stream, topic: Topic, group: Group, batch: int, client: str) -> None:
    claim = stream.take(topic, group, client, batch)
    progress.flush(stream.session, flush_of(claim, topic, claim.hi))


def test_what_is_old_and_done_is_deleted_with_its_log(stream: Stream) -> None:
    topic, group = keep(stream, 10, retention_s=3600)
    other, me = stream.group(topic, "other"), stream.client()
    finish(stream, topic, group, 6, me)
    finish(stream, topic, other, 3, me)
    trim_all(stream)
    assert left(stream) == list(range(4, 11)), "up to what the slower group has run"
    assert stream.claims(other) == [], "the log of what is deleted goes with it"
    assert [row[:2] for row in stream.claims(group)] == [(1, 6)], "but not that of a claim that reaches higher"
    finish(stream, topic, other, 7, me)
    finish(stream, topic, group, 4, me)
    stream.app().send("t", "young")
    trim_all(stream)
    assert left(stream) == [11], "what is young is kept"
    assert stream.claims(group) == stream.claims(other) == []
    late = stream.group(topic, "late")
    assert stream.cursor(late) == 11, "a new group begins at the log start offset"


def test_age_deletes_in_portions(stream: Stream) -> None:
    stream.topic("t", retention_s=300, kind=TopicKind.BROADCAST)
    stream.app().send_many("t", range(4))
    for offset, age_s in ((1, 325), (2, 310), (3, 301), (4, 290)):
        born_at = f"born_at = NOW(6) - INTERVAL {age_s} SECOND"
        stream.rows(f"UPDATE ems_message SET {born_at} WHERE `offset` = %s", offset)
    trim_all(stream)
    assert left(stream) == [1, 2, 3, 4], "the first is not a tenth too old"
    stream.rows("UPDATE ems_message SET born_at = NOW(6) - INTERVAL 331 SECOND WHERE `offset` = 1")
    trim_all(stream)
    assert left(stream) == [4], "all that are too old go with it"


def test_what_is_claimed_or_waits_for_a_retry_is_kept_whatever_the_topic_says(stream: Stream) -> None:
    topic, group = keep(stream, 30, retention_s=3600, age_wins=True)
    me = stream.client()
    first = stream.take(topic, group, me, 10)
    progress.flush(stream.session, flush_of(first, topic, 10, failures=[failed(4, retry_in_s=900.0)]))
    second = stream.take(topic, group, me, 5)
    progress.flush(stream.session, flush_of(second, topic, 12))
    trim_all(stream)
    assert left(stream) == list(range(4, 31)), "4 waits for a retry"
    stream.make_due()
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and [message.body for message in retry.messages] == [3]
    trim_all(stream)
    assert left(stream)[0] == 4, "it is running"
    progress.flush(stream.session, flush_of(retry, topic, 4, done_offsets=[(4, 2, 7)]))
    trim_all(stream)
    assert left(stream) == list(range(13, 31)), "the second claim has 13 to 15 to do"
    progress.flush(stream.session, flush_of(second, topic, 15))
    trim_all(stream)
    assert left(stream) == [], "age wins over what nobody has claimed"
    stream.app().send("t", "new")
    assert stream.value("SELECT MAX(`offset`) FROM ems_message WHERE `offset` > 0") == 31, "no offset is used twice"
    assert stream.rows("SELECT lo, hi, reason FROM ems_skip") == [(16, 30, "retention")], "never in silence"
    assert offsets(stream.take(topic, group, me)) == [31]


def test_what_age_has_won_is_claimed_by_nobody_though_it_is_still_there(stream: Stream) -> None:
    topic, group = keep(stream, 30, retention_s=3600, age_wins=True)
    other, me = stream.group(topic, "other"), stream.client()
    claim = stream.take(topic, group, me, 10)
    kept = retention.list_kept(stream.session)[0]
    passed: list[tuple[str, int]] = []
    assert retention.raise_log_start(stream.session, kept, 20, lambda *what: passed.append(what)) == 1, (
        "1 to 10 are claimed"
    )
    progress.flush(stream.session, flush_of(claim, topic, 10, failures=[failed(10, retry_in_s=900.0)]))
    assert retention.raise_log_start(stream.session, kept, 20, lambda *what: passed.append(what)) == 10, (
        "10 is to run again"
    )
    assert passed == [("other", 9)], "the group itself has claimed as far as that"
    stream.make_due()
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry
    progress.flush(stream.session, flush_of(retry, topic, 10, done_offsets=[(10, 2, 7)]))
    kept = retention.list_kept(stream.session)[0]
    assert retention.raise_log_start(stream.session, kept, 15, lambda *what: passed.append(what)) == 25
    assert left(stream) == list(range(1, 31)), "nothing is deleted yet"
    assert passed[1:] == [(group.name, 14), ("other", 15)]
    for one in (group, other):
        assert offsets(stream.take(topic, one, me)) == list(range(25, 31)), "and nobody runs what is about to go"
    trim_all(stream)
    assert left(stream) == list(range(25, 31)), "claimed, so kept"
    skipped = stream.rows("SELECT group_id, lo, hi FROM ems_skip ORDER BY group_id, lo")
    assert skipped == [(group.id, 11, 24), (other.id, 1, 9), (other.id, 10, 24)]


def test_without_age_wins_the_unclaimed_is_kept_and_what_is_done_waits_for_no_age(stream: Stream) -> None:
    topic, group = keep(stream, 5, retention_s=3600)
    trim_all(stream)
    assert left(stream) == [1, 2, 3, 4, 5]
    Admin(stream.app()).change_topic("t", retention_s=None, keep_done_s=0)
    stream.rows("UPDATE ems_message SET born_at = UTC_TIMESTAMP(6)")
    finish(stream, topic, group, 2, stream.client())
    trim_all(stream)
    assert left(stream) == [3, 4, 5]


def let_marks_age(stream: Stream) -> None:
    """An hour passes since it was last looked what is done."""
    stream.rows("UPDATE ems_partition SET done_at = done_at - INTERVAL 3600 SECOND")


def test_what_is_done_is_kept_for_a_while(stream: Stream) -> None:
    topic, group = keep(stream, 10, keep_done_s=3600)
    me = stream.client()
    finish(stream, topic, group, 4, me)
    trim_all(stream)
    finish(stream, topic, group, 3, me)
    trim_all(stream)
    assert left(stream) == list(range(1, 11)), "its age does not count, but since when it is done"
    let_marks_age(stream)
    trim_all(stream)
    assert left(stream) == list(range(5, 11)), "5 to 7 were done later"
    let_marks_age(stream)
    Admin(stream.app()).reset_group("t", "g", "5")
    trim_all(stream)
    assert left(stream) == list(range(5, 11)), "they are to be run again since"
    finish(stream, topic, group, 6, me)
    trim_all(stream)
    assert left(stream) == [8, 9, 10], "what was done when it was last looked is done again"
    let_marks_age(stream)
    trim_all(stream)
    assert left(stream) == []


def test_with_both_settings_a_message_goes_by_the_first_that_lets_it(stream: Stream) -> None:
    topic, group = keep(stream, 6, keep_done_s=3600, retention_s=7 * 86400)
    finish(stream, topic, group, 4, stream.client())
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 7 DAY WHERE `offset` <= 2")
    trim_all(stream)
    assert left(stream) == [3, 4, 5, 6], "too old, though done just now"
    let_marks_age(stream)
    trim_all(stream)
    assert left(stream) == [5, 6], "done for long, though young"
    Admin(stream.app()).change_topic("t", retention_s=3600, age_wins=True)
    trim_all(stream)
    assert left(stream) == [] and stream.rows("SELECT lo, hi FROM ems_skip") == [(5, 6)], "age wins beside it"


def test_a_call_for_a_group_that_is_yet_to_come_is_not_done(stream: Stream) -> None:
    topic, group = keep(stream, 2, keep_done_s=0, retention_s=3600)
    app, me = stream.app(), stream.client()
    app.task(name="print", topic="t", group="a_late")(print).delay('"ems-group":"g"')
    app.task(name="next", topic="t", group="g")(print).delay()
    rows.age(stream.rows, 86400)
    for one in (group, stream.group(topic, "aXlate"), stream.group(topic, "a-late")):
        finish(stream, topic, one, 4, me)
    trim_all(stream)
    assert left(stream) == [3, 4], "every group has passed it over, and it is old"
    assert told(stream) == ["topic 't' has calls for group 'a_late', which does not exist"]
    late = stream.group(topic, "a_late")
    trim_all(stream)
    assert left(stream) == [3, 4] and told(stream) == [], "it runs them; from_start=False would let them go"
    finish(stream, topic, late, 2, me)
    trim_all(stream)
    assert left(stream) == []


def test_a_call_that_was_cancelled_waits_for_no_group(stream: Stream) -> None:
    topic, group = keep(stream, 0, keep_done_s=0)
    app = stream.app()
    call = app.task(name="print", topic="t", group="gone")(print).delay()
    app.task(name="next", topic="t", group="g")(print).delay()
    Admin(app).cancel("t", call.id)
    finish(stream, topic, group, 2, stream.client())
    trim_all(stream)
    assert left(stream) == []


def test_the_result_of_a_dead_letter_outlives_its_message(stream: Stream) -> None:
    topic, group = keep(stream, 0, keep_done_s=0)
    app = stream.app()
    call = app.task(name="t", topic="t", group="g")(print).delay()
    claim = stream.take(topic, group, stream.client())
    progress.flush(stream.session, flush_of(claim, topic, claim.hi, failures=[failed(1, dead="no")]))
    trim_all(stream)
    assert left(stream) == [] and app.result(call).failed


def told(stream: Stream) -> list[str]:
    """The values that the check warns of, of retention."""
    return [one.value for one in check(stream.url, None, {}) if one.name == "retention" and one.fix]


def test_topics_that_keep_everything_are_named(stream: Stream) -> None:
    app, admin = stream.app(), Admin(stream.app())
    assert told(stream) == []
    app.send("news", 1)
    assert told(stream) == [], "made on first use"
    for number in range(7):
        admin.create_topic(f"all-{number}", partitions=2)
    app.send_many("all-4", range(3))
    found = told(stream)
    assert found[0] == "topic 'all-4': everything is kept for ever, 3 offsets so far"
    assert len(found) == 6 and found[-1] == "and 2 more topics: everything is kept for ever, 0 offsets so far"
    for number in range(7):
        admin.change_topic(
            f"all-{number}", **({"keep_done_s": 60} if number % 2 else {"retention_s": 100 * 365 * 86400.0})
        )
    assert told(stream) == []


def test_a_topic_keeps_what_its_first_user_needs(stream: Stream) -> None:
    app = stream.app(keep_done_s=60, retention_s=3600)
    for topic in ("calls", "both"):
        app.task(name=f"of.{topic}", topic=topic)(print)
    for topic in ("both", "stream"):
        app.subscribe(topic, "readers")(print)
    app.subscribe("news", broadcast=True)(print)
    for name, keeps in (
        ("calls", "1m after done"),
        ("both", "1h"),
        ("stream", "1h"),
        ("news", "1h"),
        ("undeclared", "1h"),
    ):
        app.stream.catalog.topic(name)
        assert Admin(app).topic(name).keeps == keeps, name
    endless = stream.app(keep_done_s=0, retention_s=0)
    endless.task(name="t", topic="at-once")(print)
    assert endless.stream.catalog.topic("at-once").keeps == "until done"
    assert endless.stream.catalog.topic("for-ever").keeps == "for ever"
    assert Admin(app).create_topic("said").keeps == "for ever", "who makes it says it"
    assert Ems("x", url=stream.url).registry.topic_settings("default")["retention_s"] == 7 * 86400


class Life:
    """A topic whose groups come one by one; their claims are acked in parts, fail, and are run again.

    Args:
        keep_done_s: the topic's.
    """

    def __init__(self, stream: Stream, keep_done_s: int) -> None:
        self.stream, self.dice, self.client = stream, random.Random(7), stream.client()
        self.topic = stream.topic("t", keep_done_s=keep_done_s)
        app = stream.app()
        self.tasks = [app.task(name=f"t{n}", topic="t", group=f"g{n}")(print) for n in range(3)]
        self.sent: dict[str, set[int]] = {task.group: set() for task in self.tasks}
        self.groups: list[Group] = []
        self.open: list[Claim] = []
        self.come()
        self.come()

    def come(self) -> None:
        if len(self.groups) < len(self.tasks):
            self.groups.append(self.stream.group(self.topic, self.tasks[len(self.groups)].group))

    def call(self) -> None:
        task = self.dice.choice(self.tasks)
        receipts = task.delay_many([(n,) for n in range(self.dice.randint(1, 5))])
        self.sent[task.group] |= {one.offset for one in receipts if one.offset is not None}

    def take(self) -> None:
        wanted = self.stream.claimant(self.topic, self.dice.choice(self.groups), self.client, self.dice.randint(1, 4))
        if self.dice.random() < 0.5:
            self.stream.make_due()
            claim = claims.take_retries(self.stream.session, wanted)
        else:
            claim = claims.take_range(self.stream.session, wanted, 0, wait=True)
        if claim:
            self.open.append(claim)

    def end(self, *, well: bool = False) -> None:
        """Finish a claim, or ack a part of it; one of its messages may fail."""
        claim = self.open.pop(self.dice.randrange(len(self.open)))
        done = [(one.offset, one.attempt, 1) for one in claim.messages]
        if claim.source is ClaimSource.RETRY:
            self.flush(claim, claim.hi, done_offsets=done)
        elif well or self.dice.random() < 0.4:
            self.flush(claim, claim.hi)
        elif self.dice.random() < 0.5:
            self.flush(
                claim, claim.hi, failures=[failed(self.dice.randint(claim.acked_to + 1, claim.hi), retry_in_s=9.0)]
            )
        elif claim.acked_to + 1 < claim.hi:
            self.flush(claim, claim.acked_to + 1)
            self.open.append(replace(claim, acked_to=claim.acked_to + 1))
        else:
            self.open.append(claim)

    def flush(self, claim: Claim, acked_to: int, **more: object) -> None:
        progress.flush(self.stream.session, flush_of(claim, self.topic, acked_to, **more))

    def not_done(self) -> set[int]:
        """The offsets that a group has yet to run, or that were called for a group that has yet to come."""
        found = {one for group in self.groups for one in range(self.stream.cursor(group), max(self.everything) + 1)}
        live = "SELECT acked_to, hi FROM ems_claim WHERE source = 'stream' AND state = 'start'"
        found |= {offset for acked_to, hi in self.stream.rows(live) for offset in range(acked_to + 1, hi + 1)}
        found |= {offset for (offset,) in self.stream.rows("SELECT `offset` FROM ems_retry")}
        return found.union(*(self.sent[task.group] for task in self.tasks[len(self.groups) :]))

    @property
    def everything(self) -> set[int]:
        return {0}.union(*self.sent.values())


@pytest.mark.parametrize("keep_done_s", [0, 3600])
def test_nothing_that_is_not_done_is_deleted(stream: Stream, keep_done_s: int) -> None:
    life = Life(stream, keep_done_s)
    steps = [life.call, life.take, life.take, life.end, life.end, lambda: let_marks_age(stream)]
    for number in range(120):
        if number == 60:
            life.come()
        step = life.dice.choice(steps)
        if step != life.end or life.open:
            step()
        trim_all(stream)
        assert life.not_done() <= set(left(stream)), f"after step {number}"
    assert left(stream)[0] > 1, "it did delete"
    while life.not_done():
        life.take()
        while life.open:
            life.end(well=True)
    for _ in range(3):
        trim_all(stream)
        let_marks_age(stream)
    trim_all(stream)
    assert left(stream) == []


def test_a_topic_without_groups_is_trimmed_by_age_only(stream: Stream) -> None:
    stream.topic("t", retention_s=3600, keep_done_s=0)
    stream.app().send_many("t", range(4))
    trim_all(stream)
    assert left(stream) == [1, 2, 3, 4]
    stream.rows("UPDATE ems_message SET born_at = born_at - INTERVAL 1 DAY WHERE `offset` <> 3")
    trim_all(stream)
    assert left(stream) == [3, 4], "never past one that is young"


def test_a_crash_between_log_start_and_deletion_is_made_up_for(stream: Stream) -> None:
    topic, group = keep(stream, 8, retention_s=3600)
    finish(stream, topic, group, 8, stream.client())
    kept = retention.list_kept(stream.session)[0]
    assert retention.raise_log_start(stream.session, kept, 100) == 9
    assert left(stream) == list(range(1, 9)), "here the leader dies"
    trim_all(stream)
    assert left(stream) == []
    assert not close_hole(stream.session, topic.id, group.id, 0, 0.0), "what is below the log start offset is no hole"


def test_a_requeued_dead_letter_is_kept_until_it_has_been_run(stream: Stream) -> None:
    topic, group = keep(stream, 6, retention_s=3600)
    me = stream.client()
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 6, failures=[failed(2, dead="no"), failed(5, dead="no")]))
    attempts = "SELECT `offset` FROM ems_attempt ORDER BY 1"
    assert stream.rows(attempts) == [(2,), (5,)]
    kept = retention.list_kept(stream.session)[0]
    retention.raise_log_start(stream.session, kept, 100)
    dead.requeue(stream.session, group, [(0, 5)], lambda places: None)  # below the log start offset, not yet deleted
    trim_all(stream)
    assert left(stream) == [5]
    assert stream.rows(attempts) == [(2,)], "a dead letter keeps its story"
    dead.requeue(stream.session, group, [(0, 2)], lambda places: None)  # deleted: put back
    trim_all(stream)
    assert left(stream) == [2, 5]
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and offsets(retry) == [2, 5]
    progress.flush(stream.session, flush_of(retry, topic, 5, done_offsets=[(2, 1, 7), (5, 1, 7)]))
    trim_all(stream)
    assert left(stream) == []
    assert stream.rows("SELECT * FROM ems_restored") == []
    assert stream.rows(attempts) == [], "the story goes with the message"


def test_a_deleted_dead_letter_leaves_no_attempts_behind(stream: Stream) -> None:
    topic, group = keep(stream, 4, retention_s=3600)
    claim = stream.take(topic, group, stream.client())
    progress.flush(stream.session, flush_of(claim, topic, 4, failures=[failed(2, dead="no"), failed(3, dead="no")]))
    trim_all(stream)
    assert left(stream) == []
    attempts = "SELECT `offset` FROM ems_attempt ORDER BY 1"
    assert stream.rows(attempts) == [(2,), (3,)]
    assert dead.delete_dead(stream.session, group, [(0, 2), (0, 4)], lambda places: None) == 1
    trim_all(stream)
    assert stream.rows(attempts) == [(3,)], "that of the other dead letter stays"
    assert stream.rows("SELECT * FROM ems_restored") == []


def test_a_dead_letter_that_is_requeued_while_retention_takes_its_message_is_put_back(stream: Stream) -> None:
    """It has died for the second time, below the log start offset: the beat is about to delete its message."""
    topic, group = keep(stream, 3, retention_s=3600)
    me = stream.client()
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 3, failures=[failed(2, dead="no")]))
    trim_all(stream)
    dead.requeue(stream.session, group, [(0, 2)], lambda places: None)
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry
    progress.flush(stream.session, flush_of(retry, topic, 2, failures=[failed(2, dead="again")]))
    places = retention.list_restored(stream.session, topic.id)
    assert places == [(0, 2)]
    with stream.other() as holder, holder.cursor() as cursor:
        cursor.execute("SELECT * FROM ems_restored FOR UPDATE")  # retention, before its look at the retries
        with ThreadPoolExecutor(1) as pool:
            requeued = pool.submit(_requeue_elsewhere, stream, group)
            wait_until(lambda: _waits_for_a_lock(stream), 10, "the requeue waits")
            cursor.execute("DELETE FROM ems_message WHERE `offset` > 0")
            cursor.execute("DELETE FROM ems_restored")
            holder.commit()
            assert requeued.result(30) == 1
    assert left(stream) == [2], "put back from the dead letter's copy"
    assert retention.delete_restored(stream.session, topic.id, places) == 0, "and now it is to run"
    assert left(stream) == [2]


def _requeue_elsewhere(stream: Stream, group: Group) -> int:
    with stream.new_session() as session:
        return dead.requeue(session, group, [(0, 2)], lambda places: None)


def _waits_for_a_lock(stream: Stream) -> bool:
    shown = stream.rows("SHOW FULL PROCESSLIST")
    return any("INSERT IGNORE INTO ems_restored" in str(row[7]) for row in shown)


def test_a_retry_whose_message_is_gone_ends_and_says_so(stream: Stream) -> None:
    topic, group = keep(stream, 3)
    me = stream.client()
    claim = stream.take(topic, group, me)
    progress.flush(stream.session, flush_of(claim, topic, 3, failures=[failed(1), failed(2)]))
    rows.lose(stream.rows, 1)
    stream.make_due()
    retry = claims.take_retries(stream.session, stream.claimant(topic, group, me))
    assert retry and offsets(retry) == [2] and retry.gone == [(1, 2)]
    known = ClaimProgress(retry, topic.id, 60.0)
    known.end([Ended(message) for message in retry.messages])
    progress.flush(stream.session, known.finish(60.0).flush)
    assert stream.retries(group) == []
    told = stream.rows("SELECT `offset`, outcome FROM ems_attempt WHERE attempt = 2 ORDER BY `offset`")
    assert told == [(1, "expired"), (2, "done")]
