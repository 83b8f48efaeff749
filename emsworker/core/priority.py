"""Priorities 0 to 9, and the priority levels of a topic.

A level is named by its lowest priority. A topic with ten levels has one for each priority; one with two has 0 (for
priorities 0 to 4) and 5 (for 5 to 9).
"""

from __future__ import annotations

from emsworker.core.errors import InvalidPriority

PRIORITIES = range(10)


def levels_of(priorities: int) -> list[int]:
    """Return the levels of a topic that has this number of levels, lowest first."""
    return [-(-number * len(PRIORITIES) // priorities) for number in range(priorities)]


def level_below(priorities: int, priority: int) -> int:
    """Return the level of a priority in a topic that has this number of levels."""
    return max(level for level in levels_of(priorities) if level <= priority)


def check_priority(priority: object) -> None:
    """Check that a priority is valid, or not given.

    Raises:
        InvalidPriority: the priority is not a number from 0 to 9.
    """
    if priority is not None and (
        not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES
    ):
        raise InvalidPriority(f"priority {priority!r:.100} is not valid: it must be a number from 0 to 9, the highest")


def level_for(topic: str, priorities: int, priority: int | None) -> int:
    """Return the level of a message's priority; without a priority it is the lowest.

    Args:
        topic: the topic's name, for the error message.
        priorities: the number of the topic's levels.

    Raises:
        InvalidPriority: not a priority, or the topic has no levels, so that it would have no effect.
    """
    check_priority(priority)
    if priority is None:
        return 0
    if priorities == 1:
        raise InvalidPriority(
            f"topic {topic!r} does not tell priorities apart, so priority {priority} would have no effect; nothing was "
            f"sent (`ems topics change {topic} --priorities 10` gives it levels, "
            "the setting 'priorities' those that are created on first use)"
        )
    return level_below(priorities, priority)
