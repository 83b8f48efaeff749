"""Skipping of backlogs: once, or by a policy that the beat applies."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Group
from emsworker.core.options import problems_in, raise_problems
from emsworker.store import topics
from emsworker.store.engine.database import Database
from emsworker.store.engine.session import Session
from emsworker.store.groups import cursors
from emsworker.store.groups import skipping as store
from emsworker.store.groups.skipping import Skip, SkipPolicy


class Backlogs:
    """Backlogs of groups.

    Args:
        database: the database of the stream.
        group_of: finds a group of a topic.
    """

    def __init__(self, database: Database, group_of: Callable[[str, str], Group]) -> None:
        self._database, self._group_of = database, group_of

    def policies(self) -> dict[int, SkipPolicy]:
        """Return the skip policies of the groups that have one, by group id."""
        return {group_id: policy for group_id, (_, policy) in self._database.call(store.list_policies).items()}

    def set_policy(self, topic: str, group: str, policy: SkipPolicy) -> None:
        """Let the beat skip messages that a group would run too late, from now on; an empty policy ends that.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: naming every setting that is wrong.
        """
        one = self._checked(topic, group, policy)
        self._database.call(lambda session: store.set_policy(session, one, policy))

    def skip(
        self, topic: str, group: str, policy: SkipPolicy, *, partition: int | None = None, dry_run: bool = False
    ) -> list[Skip]:
        """Skip messages that a group would run too late, once; those claimed or waiting for a retry are still run.

        Args:
            policy: selects the unclaimed messages to skip; ``SkipPolicy(most_waiting=0)``: all.
            partition: only in this partition.
            dry_run: only return what would be skipped.

        Returns:
            the skip of each partition in which messages were skipped.

        Raises:
            UnknownTopic, UnknownGroup: there is no such topic or group.
            ConfigError: the policy is wrong or empty, or there is no such partition.
        """
        if not policy:
            raise ConfigError([Problem("skip", "nothing", "give most_waiting or older_s")])
        one = self._checked(topic, group, policy)
        skips = self._database.call(lambda session: store.plan_skips(session, one, policy))
        if partition is not None:
            known = [at.partition for at in self._database.call(lambda session: cursors.list_positions(session, one))]
            if partition not in known:
                raise ConfigError([Problem("partition", str(partition), "the topic has no such partition")])
            skips = [skip for skip in skips if skip.partition == partition]
        return skips if dry_run else self._database.call(lambda s: store.make_skips(s, one, skips, policy))

    def _checked(self, topic: str, group: str, policy: SkipPolicy) -> Group:
        raise_problems(_problems(policy))
        one = self._group_of(topic, group)
        if policy.below_priority is not None:
            positions = self._database.call(lambda session: cursors.list_positions(session, one))
            if not policy.concerns(positions):
                fix = f"topic {topic!r} has no lower level; `ems topics change {topic} --priorities 10` gives it levels"
                raise ConfigError([Problem("below_priority", str(policy.below_priority), fix)])
        return one


def ruled_groups(session: Session) -> Iterator[tuple[str, Group, SkipPolicy]]:
    """Yield each group that has a skip policy, with the name of its topic; not one that an operator has paused."""
    policies = store.list_policies(session)
    for group in topics.list_groups(session) if policies else ():
        if group.id in policies and not group.paused:
            topic, policy = policies[group.id]
            yield topic, group, policy


def apply_policy(session: Session, group: Group, policy: SkipPolicy) -> list[Skip]:
    """Skip what the policy of a group selects now; returns the skip of each partition."""
    return store.make_skips(session, group, store.plan_skips(session, group, policy), policy)


def _problems(policy: SkipPolicy) -> list[Problem]:
    problems = problems_in(policy)
    if policy.below_priority is not None and policy.most_waiting is None and policy.older_s is None:
        fix = "give most_waiting (0 for none) or older_s as well"
        problems.append(Problem("below_priority", str(policy.below_priority), fix))
    return problems
