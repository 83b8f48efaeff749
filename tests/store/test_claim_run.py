"""Work on a claim while answers of the server are lost: nothing is lost, and nothing is recorded twice."""

from dataclasses import replace
from typing import Any

import pytest

from emsworker.broker.mysql_channel import MysqlChannel
from emsworker.consume.claim_progress import Ended
from emsworker.consume.claim_run import ClaimRun
from emsworker.core.flush import ResultRow
from emsworker.core.model import Group, Message, Order, Topic
from emsworker.core.process.clock import ticks
from emsworker.store.engine.errors import ConnectionLost
from emsworker.store.groups import results
from emsworker.tasks.options import HandlerOptions
from tests.support.streams import TIMEOUT_S, Stream, failed


class Lossy:
    """A channel that loses a packet, or its answer, once."""

    def __init__(self, stream: Stream, *, arrives: bool) -> None:
        self._channel, self._arrives, self._loses = MysqlChannel(stream.session), arrives, True

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._channel, name)
        if name not in ("flush", "give_back", "detach") or not self._loses:
            return method

        def lose(*args: Any) -> None:
            self._loses = False
            if self._arrives:
                method(*args)
            raise ConnectionLost("no answer")

        return lose


def begin(stream: Stream, order: Order = Order.NONE) -> tuple[Topic, Group, ClaimRun, list[Message]]:
    topic = stream.topic()
    group = stream.group(topic, order=order)
    stream.app().send_many("t", list(range(4)))
    claim = stream.take(topic, group, stream.client())
    return topic, group, ClaimRun(claim, topic.id, TIMEOUT_S, 0), list(claim.messages)


def finish(stream: Stream, run: ClaimRun) -> None:
    channel = MysqlChannel(stream.session)
    flush = run.finish(channel)
    assert flush is not None
    channel.flush(flush)


@pytest.mark.parametrize("arrives", [True, False])
def test_what_is_shared_is_given_back_though_the_answer_is_lost(stream: Stream, arrives: bool) -> None:
    """And the handler ends before it is sent again: the claim must not end as if all of it were done."""
    _, group, run, messages = begin(stream)
    assert run.start(messages[:1], HandlerOptions(), ticks())
    with pytest.raises(ConnectionLost):
        run.share_rest(Lossy(stream, arrives=arrives))  # type: ignore[arg-type]
    assert not run.start(messages[1:2], HandlerOptions(), ticks())
    run.done([Ended(messages[0])])
    finish(stream, run)
    assert [row[:4] for row in stream.claims(group)] == [(1, 1, 1, "done"), (2, 4, 1, "waiting")]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_after_a_cut_in_doubt_leaves_the_rest_to_others(stream: Stream, arrives: bool) -> None:
    _, group, run, messages = begin(stream)
    channel = MysqlChannel(stream.session)
    assert run.start(messages[:1], HandlerOptions(), ticks())
    with pytest.raises(ConnectionLost):
        run.share_rest(Lossy(stream, arrives=arrives))  # type: ignore[arg-type]
    run.commit([Ended(messages[0])], channel.flush)
    finish(stream, run)
    assert [row[:4] for row in stream.claims(group)] == [(1, 1, 1, "done"), (2, 4, 1, "waiting")]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_hang_is_recorded_once_though_the_answer_is_lost(stream: Stream, arrives: bool) -> None:
    _, group, run, messages = begin(stream)
    since = ticks() - 5
    assert run.start(messages[:1], HandlerOptions(timeout_s=1), since)
    ended = Ended(messages[0], 5.0, failed(1))
    with pytest.raises(ConnectionLost):
        run.give_up(Lossy(stream, arrives=arrives), since, ended)  # type: ignore[arg-type]
    assert run.give_up(MysqlChannel(stream.session), since, ended)
    run.done([Ended(messages[0])])  # it comes back after all
    assert not run.start(messages[1:2], HandlerOptions(), ticks())
    assert [row[:4] for row in stream.claims(group)] == [(1, 1, 1, "done"), (2, 4, 1, "waiting")]
    assert stream.retries(group) == [(1, 1, False, 0)] and stream.value("SELECT COUNT(*) FROM ems_attempt") == 1


def test_errors_of_a_storm_are_kept_with_each_of_its_messages(stream: Stream) -> None:
    """One that several messages have is sent once."""
    _, group, run, messages = begin(stream)
    assert run.start(messages, HandlerOptions(), ticks())
    texts = ["it's \\ away 😀", "another", "it's \\ away 😀", "third %s"]
    failures = [replace(failed(number), error=text) for number, text in enumerate(texts, 1)]
    run.done([Ended(one, 1.0, failure) for one, failure in zip(messages, failures, strict=True)])
    channel = MysqlChannel(stream.session)
    flush = run.finish(channel)
    assert flush is not None
    channel.flush(flush)
    attempts = stream.rows("SELECT `offset`, error FROM ems_attempt WHERE group_id = %s ORDER BY 1", (group.id,))
    retries = stream.rows("SELECT `offset`, last_error FROM ems_retry WHERE group_id = %s ORDER BY 1", (group.id,))
    assert list(attempts) == list(retries) == list(enumerate(texts, 1))


def test_results_that_succeeded_and_failed_are_written_beside_each_other(stream: Stream) -> None:
    topic, group, run, messages = begin(stream)
    assert run.start(messages, HandlerOptions(), ticks())
    kept = [
        [ResultRow(messages[0].uid, b'"it\'s \\\\ 1"', ttl_s=60)],
        [ResultRow(messages[1].uid, b"2", ttl_s=60)],
        [ResultRow(messages[2].uid, None, "ValueError", "no", "trace", ttl_s=60)],
        [ResultRow(messages[3].uid, None, ttl_s=60, cancelled=True, error_type="RunCancelled")],
    ]
    channel = MysqlChannel(stream.session)
    for few in (slice(0, 2), slice(2, 4)):  # all of a kind, and mixed with failures
        run.done([Ended(one, 1.0, results=rows) for one, rows in zip(messages[few], kept[few], strict=True)])
        run.write_down(channel)
    found = results.find(stream.session, [topic.id], [message.uid for message in messages], group.name)
    assert [(one.body, one.error_type, one.cancelled) for one in (found[message.uid] for message in messages)] == [
        (b'"it\'s \\\\ 1"', None, False),
        (b"2", None, False),
        (None, "ValueError", False),
        (None, "RunCancelled", True),
    ]
