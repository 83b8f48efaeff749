"""Tasks of a stream's groups: figures of what they run, what waits, and pauses, behind ``ems tasks``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import nlargest
from itertools import groupby
from operator import itemgetter

from emsworker.admin.lists import Groups
from emsworker.core.codec import decode_headers
from emsworker.core.counted import AtLeast, Estimate
from emsworker.core.errors import ConfigError, DecodeError, Problem, UnknownTask
from emsworker.core.model import GROUP_HEADER, TASK_HEADER, Group, Topic
from emsworker.core.options import nearest, raise_problems, seconds
from emsworker.core.task_figures import TaskFigures, percentile
from emsworker.store.cluster.user_schedules import find_handlers
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import task_figures as store
from emsworker.store.groups import task_pauses
from emsworker.store.groups.handlers import list_handlers
from emsworker.store.groups.task_figures import KeptFigures, Task
from emsworker.store.inspect.monitoring import PartitionLag, list_lags

WITHIN_S = 3600.0
_WITHIN = seconds(600, 86_400)
_OF_TOPIC, _OF_ALL = 1000, 200  # messages of a group that are looked at, for those of one topic and for all
_STRETCHES = 4  # of a partition, evenly spaced
_MOST_GROUPS, _MOST_PARTITIONS = 50, 20  # those with the most messages; of each, the longest
_MOST_RUNNING, _MOST_HELD = 1000, 10_000
_SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class TaskView:
    """Task of a group, and what came of its messages lately.

    Attributes:
        task: its name; empty for a subscription.
        paused: its messages are put aside until it is resumed.
        waiting: messages that no client has claimed, and those that were put aside; an
            :class:`~emsworker.core.counted.Estimate` if there are more than are looked at, ``None`` if it is unknown.
        running: threads that run it; ``None`` if that was not looked at.
        runs, failed, retried, dead: of the runs that ended, as workers with ``task_figures_s`` counted them.
        waits_s, runs_s: the median, the 95th and the 99th percentile of the seconds for which messages had waited when
            they ran first, and of those that runs took, each within a fifth; none without figures.
        cpu_s: mean processor time of a run in seconds; ``None`` if it is not known, as that of coroutines.
        error, error_at: the last error in one line, and its time; ``error`` is ``None`` if it was not read.
    """

    topic: str
    group: str
    task: str
    paused: bool
    waiting: int | None
    running: int | None
    runs: int
    failed: int
    retried: int
    dead: int
    waits_s: tuple[float, ...]
    runs_s: tuple[float, ...]
    cpu_s: float | None
    error: str | None
    error_at: datetime | None


class Tasks:
    """Tasks of a stream.

    Args:
        database: the database of the stream.
        list_groups: lists its groups.
        find_group: finds a group by topic and name.
    """

    def __init__(self, database: Database, list_groups: Groups, find_group: Callable[[str, str], Group]) -> None:
        self._database, self._list_groups, self._find_group = database, list_groups, find_group

    def list(self, topic: str | None = None, *, within_s: float = WITHIN_S, details: bool = True) -> list[TaskView]:
        """Return the tasks of all groups, or of those of one topic, sorted by name.

        They are those with which workers have started, and those that have figures.

        Args:
            within_s: figures of this time, in steps of ten minutes; they are kept for a day.
            details: look at headers and errors, too: what waits and runs, and the last error.

        Raises:
            UnknownTopic: there is no topic of that name.
            ConfigError: ``within_s`` is not between 10 minutes and a day.
            AccessDenied: the database user may not read headers and errors.
        """
        raise_problems(_WITHIN.problems("within_s", within_s))
        groups = {group.id: (of, group) for of, group in self._list_groups(topic)}

        def read(session: Session) -> list[TaskView]:
            found = store.read(session, groups, within_s, details=details)
            pauses = task_pauses.list_pauses(session, groups)
            now = _Now()
            if details:
                subscribed = {group_id for group_id, task in found if not task}
                now = _look(session, groups, subscribed, pauses, _OF_ALL if topic is None else _OF_TOPIC)
            for task in {*pauses, *now.waiting, *now.running} - found.keys():
                found[task] = KeptFigures(TaskFigures())
            views = [_view(groups[task[0]], task, kept, now, paused=task in pauses) for task, kept in found.items()]
            return sorted(views, key=lambda one: (one.topic, one.group, one.task))

        return self._database.call(read)

    def topics_of(self, task: str) -> Sequence[str]:
        """Return the topics on which workers have started with a task of that name."""
        return sorted({topic for topic, _ in self._database.call(lambda session: find_handlers(session, task))})

    def pause(self, topic: str, group: str, task: str) -> None:
        """Pause a task of a group: workers put its messages aside, and go on with those of other tasks.

        Workers follow within a second, and finish what they have claimed before. No attempt is charged. In a group that
        runs in order, later messages of the same key, or of the partition, wait with those of the task.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            UnknownTask: no worker has started with such a task in that group.
        """
        found = self._find_group(topic, group)
        self._database.call(lambda session: _check_task(session, found, task))
        self._database.call(lambda session: task_pauses.pause(session, found, task))

    def resume(self, topic: str, group: str, task: str) -> int:
        """Resume a task of a group; again is no error.

        Returns:
            the number of its messages that were put aside, and are due now.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            UnknownTask: it is not paused, and no worker has started with such a task in that group.
        """
        found = self._find_group(topic, group)

        def resume(session: Session) -> int:
            if (found.id, task) not in task_pauses.list_pauses(session, [found.id]):
                _check_task(session, found, task)
            return task_pauses.resume(session, found, task)

        return self._database.call(resume)


def _check_task(session: Session, group: Group, task: str) -> None:
    names = list(list_handlers(session, group.id))
    if names == [""]:
        fix = f"group {group.name!r} runs a subscription; pause the group"
        raise ConfigError([Problem("task", repr(task), fix)])
    if task not in names:
        raise UnknownTask(f"no worker has started with task {task!r} in group {group.name!r}; {nearest(task, names)}")


@dataclass(frozen=True)
class _Now:
    """Messages that wait and run, by task; ``looked``: the groups of which that is known."""

    waiting: Mapping[Task, int] = field(default_factory=dict)
    running: Mapping[Task, int] = field(default_factory=dict)
    looked: Collection[int] = ()


def _view(place: tuple[Topic, Group], task: Task, kept: KeptFigures, now: _Now, *, paused: bool) -> TaskView:
    figures, is_known = kept.figures, task[0] in now.looked
    return TaskView(
        place[0].name,
        place[1].name,
        task[1],
        paused,
        now.waiting.get(task, 0) if is_known else None,
        now.running.get(task, 0) if is_known else None,
        figures.runs,
        figures.failed,
        figures.retried,
        figures.dead,
        _percentiles(figures.waits),
        _percentiles(figures.spans),
        figures.cpu_us / 1e6 / figures.cpu_runs if figures.cpu_runs else None,
        figures.error,
        kept.error_at,
    )


def _percentiles(buckets: Mapping[int, int]) -> tuple[float, ...]:
    return tuple(value for share in _SHARES if (value := percentile(buckets, share)) is not None)


# -- what waits and runs: headers are looked at, of a bounded number of messages ---------------------------------------


def _look(
    session: Session,
    groups: Mapping[int, tuple[Topic, Group]],
    subscribed: Collection[int],
    pauses: Iterable[Task],
    most: int,
) -> _Now:
    """Look at what waits and what runs.

    Args:
        subscribed: the groups that run a subscription, whatever is in the headers.
        pauses: the paused tasks.
        most: how many messages of each group are looked at.
    """
    running: Counter[Task] = Counter()
    for group_id, raw in store.read_running(session, groups, _MOST_RUNNING):
        running.update((group_id, task) for task in _tasks_in(groups[group_id][1], [raw], group_id in subscribed))
    lags: dict[int, list[PartitionLag]] = {group_id: [] for group_id in groups}
    for lag in list_lags(session, _MOST_HELD, groups):
        lags[lag.group_id].append(lag)
    looked = nlargest(_MOST_GROUPS, lags, key=lambda group_id: sum(lag.unclaimed for lag in lags[group_id]))
    waiting: dict[Task, int] = {}
    for group_id in looked:
        counts = _sample(session, *groups[group_id], lags[group_id], group_id in subscribed, most)
        waiting |= {(group_id, task): count for task, count in counts.items()}
        if any(lag.retries for lag in lags[group_id]):
            lanes = _in_lanes(session, *groups[group_id], group_id in subscribed, most)
            waiting |= {
                (group_id, task): _sum(waiting.get((group_id, task), 0), count) for task, count in lanes.items()
            }
    for group_id, tasks in groupby(sorted(pauses), key=itemgetter(0)):
        held = task_pauses.count_held(session, group_id, [task for _, task in tasks], _MOST_HELD)
        waiting |= {(group_id, task): _sum(waiting.get((group_id, task), 0), count) for task, count in held.items()}
    return _Now(waiting, running, frozenset(looked))


def _sum(first: int, second: int) -> int:
    kind = next((type(one) for one in (first, second) if isinstance(one, (Estimate, AtLeast))), int)
    return kind(first + second)


def _sample(
    session: Session, topic: Topic, group: Group, lags: Sequence[PartitionLag], is_subscribed: bool, most: int
) -> dict[str, int]:
    """Return how many messages of each task wait in the stream: exact if there are few, else by their share."""
    counts: Counter[str] = Counter()
    waiting = [lag for lag in lags if lag.unclaimed]
    longest = nlargest(_MOST_PARTITIONS, waiting, key=lambda lag: lag.unclaimed)
    is_exact = len(waiting) == len(longest)
    for lag in longest:
        stretches = _stretches(lag.cursor, lag.unclaimed, most // len(longest))
        seen = sum(hi - lo + 1 for lo, hi in stretches)
        is_exact &= seen == lag.unclaimed
        headers = store.read_headers(session, topic.id, lag.partition, stretches)
        for task, count in Counter(_tasks_in(group, headers, is_subscribed)).items():
            counts[task] += round(count * lag.unclaimed / seen)
    return {task: count if is_exact else Estimate(count) for task, count in counts.items()}


def _in_lanes(session: Session, topic: Topic, group: Group, is_subscribed: bool, most: int) -> dict[str, int]:
    """Return how many messages of each task wait in the lanes of a fair group, counted up to a limit."""
    headers = store.read_lanes(session, topic.id, group.id, most)
    counts = Counter(_tasks_in(group, headers, is_subscribed))
    return {task: count if len(headers) < most else AtLeast(count) for task, count in counts.items()}


def _stretches(start: int, length: int, most: int) -> list[tuple[int, int]]:
    """Return ranges of offsets, evenly spaced, that cover all of a short span, and some of a long one."""
    if length <= most:
        return [(start, start + length - 1)]
    size = most // _STRETCHES
    step = (length - size) // (_STRETCHES - 1)
    begins = [start + number * step for number in range(_STRETCHES)]
    return [(begin, begin + size - 1) for begin in begins]


def _tasks_in(group: Group, found: Iterable[bytes | None], is_subscribed: bool) -> Iterator[str]:
    """Yield the tasks of messages that a group runs, by their headers; an empty name for those that have none."""
    for raw in found:
        try:
            headers = {} if raw is None else decode_headers(raw)
        except DecodeError:
            headers = {}
        if headers.get(GROUP_HEADER, group.name) == group.name:
            yield "" if is_subscribed else headers.get(TASK_HEADER, "")
