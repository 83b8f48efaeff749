"""Levels of priority, the partitions that carry them, and who comes next."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emsworker import Ems
from emsworker.consume.hints import AGING_EVERY, Chooser, Hint
from emsworker.core.errors import ConfigError, InvalidPriority
from emsworker.core.model import NewMessage, Topic, TopicKind, TopicRule
from emsworker.core.partitioner import MAX_PARTITIONS, level_of, partition_number, partition_of
from emsworker.core.priority import PRIORITIES, level_below, levels_of


@given(st.integers(1, 10), st.sampled_from(PRIORITIES))
def test_every_priority_has_one_level_and_a_higher_one_never_a_lower_level(priorities: int, priority: int) -> None:
    levels = levels_of(priorities)
    assert len(set(levels)) == priorities and levels[0] == 0 and levels == sorted(levels)
    assert level_below(priorities, priority) == levels[priority * priorities // 10]


@given(st.integers(1, 10), st.integers(1, MAX_PARTITIONS))
def test_partitions_are_numbered_apart_and_fit_the_column(priorities: int, partitions: int) -> None:
    topic = Topic(1, "t", TopicKind.CLUSTER, partitions, TopicRule.READ_WRITE, 1, None, priorities=priorities)
    numbers = topic.partition_numbers()
    assert len(set(numbers)) == priorities * partitions and max(numbers) < 1 << 16
    assert [level_of(number) for number in numbers[::partitions]] == levels_of(priorities)


def test_a_key_has_the_same_partition_of_each_level() -> None:
    for level in (0, 7):
        keyed = NewMessage(b"", b"k", None, b"", b"", level=level)
        assert keyed.place(5, otherwise=3) == partition_number(level, partition_of(b"k", 5))
        assert NewMessage(b"", None, None, b"", b"", level=level).place(5, otherwise=8) == partition_number(level, 3)
        assert NewMessage(b"", b"k", None, b"", b"", 2, level).place(5, otherwise=8) == partition_number(level, 2)


# -- who comes next ----------------------------------------------------------------------------------------------------


def chosen(hints: list[Hint], times: int) -> Counter[Hint]:
    chooser = Chooser()
    return Counter(chooser.choose(hints) for _ in range(times))


def test_higher_levels_come_first_but_for_every_tenth_time() -> None:
    low, middle, high = (Hint(1, "stream", number) for number in (0, 4000, 9000))
    counts = chosen([low, middle, high], 20 * AGING_EVERY)
    assert counts[high] == 20 * (AGING_EVERY - 1)
    assert counts[low] == counts[middle] == 10, "each starved level has its turn"


def test_a_high_message_is_next_whatever_went_before() -> None:
    chooser = Chooser()
    low, waiting, high = Hint(1, "stream", 0), Hint(1, "waiting", 0), Hint(1, "stream", 9000)
    assert [chooser.choose([low, waiting]) for _ in range(6)] == [waiting, low] * 3, "they take turns"
    assert chooser.choose([low]) == low
    assert chooser.choose([low, waiting, high]) == high


def test_priorities_of_one_group_do_not_starve_another_group() -> None:
    high, low, plain = Hint(1, "stream", 9000), Hint(1, "stream", 0), Hint(2, "stream", 0)
    counts = chosen([high, low, plain], 100)
    assert counts[plain] >= 45


def test_groups_and_partitions_take_turns_though_the_leads_are_looked_up_anew() -> None:
    hints = [Hint(group, "stream", partition) for group in (1, 2) for partition in (0, 1, 2)]
    chooser = Chooser()
    counts = Counter(chooser.choose(list(hints)) for _ in range(60))
    assert set(counts.values()) == {10}


def test_retries_take_turns_with_new_messages_of_any_priority() -> None:
    retries, high, low = Hint(1, "retries"), Hint(1, "stream", 9000), Hint(1, "stream", 0)
    assert chosen([retries, high, low], 100)[retries] == 50


# -- saying it ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Ems:
    return Ems("memory", url="mysql://nobody@127.0.0.1:1/none")


@pytest.mark.parametrize("wrong", [-1, 10, 1.5, "high", True])
def test_a_priority_is_a_number_from_0_to_9(app: Ems, wrong: Any) -> None:
    with app.test(), pytest.raises(InvalidPriority, match="from 0 to 9"):
        app.send("t", 1, priority=wrong)
    with pytest.raises(ConfigError, match="priority = "):
        app.task(priority=wrong)(len)


def test_a_subscription_has_no_priority_of_its_own(app: Ems) -> None:
    with pytest.raises(ConfigError, match="give the priority when you send"):
        app.subscribe("t", "g", priority=5)(len)


def test_the_test_app_runs_higher_ones_first_and_keeps_the_order_among_equals(app: Ems) -> None:
    ran: list[tuple[int, int]] = []

    @app.task(priority=5, bind=True)
    def work(self: Any, number: int) -> None:
        ran.append((int(self.request.headers["ems-priority"]), number))

    with app.test() as test:
        for number in range(3):
            work.delay(number)
            work.apply_async((number,), priority=9)
            work.apply_async((number,), priority=0, countdown=0)
        assert [message.priority for message in test.sent[:3]] == [5, 9, 0]
        test.run()
    assert ran == [(9, 0), (9, 1), (9, 2), (5, 0), (5, 1), (5, 2), (0, 0), (0, 1), (0, 2)]
