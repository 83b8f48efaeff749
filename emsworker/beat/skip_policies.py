"""The beat service that skips messages that would be too late, in groups with a skip policy."""

from __future__ import annotations

import logging

from emsworker.admin.backlogs import apply_policy, ruled_groups
from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.store import Session

log = logging.getLogger(__name__)

_LOOK_BEATS = 5


def skip_backlogs(session: Session, settings: Settings) -> float:
    """Skip the messages that the policies name; each skip is counted, stored and logged."""
    for topic, group, policy in ruled_groups(session):
        for skip in apply_policy(session, group, policy):
            log.warning(
                "group %s of topic %s skipped %s of partition %d (%d to %d): %s",
                *(group.name, topic, counted(skip.count, "message"), skip.partition, skip.cursor, skip.to - 1, policy),
            )
    return _LOOK_BEATS * settings.beat_s
