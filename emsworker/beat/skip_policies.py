"""The beat service that skips messages that would be too late, in groups with a skip policy."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session, topics
from emsworker.store.groups import skipping

log = logging.getLogger(__name__)

_LOOK_BEATS = 5


def skip_backlogs(session: Session, settings: Settings) -> float:
    """Skip the messages that the policies name; each skip is counted, stored and logged."""
    policies = skipping.list_policies(session)
    groups = {group.id: group for group in topics.list_groups(session)} if policies else {}
    for group_id, (topic, policy) in policies.items():
        group = groups.get(group_id)
        if group is None or group.paused:  # an operator may have paused it to inspect it
            continue
        for skip in skipping.make_skips(session, group, skipping.plan_skips(session, group, policy), policy):
            log.warning(
                "group %s of topic %s skipped %s of partition %d (%d to %d): %s",
                *(group.name, topic, counted(skip.count, "message"), skip.partition, skip.cursor, skip.to - 1, policy),
            )
    return _LOOK_BEATS * settings.beat_s
