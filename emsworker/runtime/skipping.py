"""A beat service: groups with a skip policy pass over what would be too late."""

from __future__ import annotations

import logging

from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import skipping, topics
from emsworker.store.session import Session

log = logging.getLogger(__name__)

_LOOK_BEATS = 5


def skip_backlogs(session: Session, settings: Settings) -> float:
    """Pass over what the policies say; each time it is counted, written down and logged."""
    policies = skipping.list_policies(session)
    groups = {group.id: group for group in topics.list_groups(session)} if policies else {}
    for group_id, (topic, policy) in policies.items():
        group = groups.get(group_id)
        if group is None or group.paused:  # somebody paused it in order to have a look
            continue
        for skip in skipping.make_skips(session, group, skipping.plan_skips(session, group, policy), policy):
            log.warning(
                "group %s of topic %s skipped %s of partition %d (%d to %d): %s",
                *(group.name, topic, counted(skip.count, "message"), skip.partition, skip.cursor, skip.to - 1, policy),
            )
    return _LOOK_BEATS * settings.beat_s
