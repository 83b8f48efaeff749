"""Priorities 0 to 9, and the levels that a topic tells apart.

A level is named by the lowest of its priorities. A topic with ten levels has one for each; one with two has 0 (for
priorities 0 to 4) and 5 (for 5 to 9).
"""

from __future__ import annotations

from emsworker.core.errors import InvalidPriority

PRIORITIES = range(10)


def levels_of(priorities: int) -> list[int]:
    """The levels of a topic that tells so many apart, lowest first."""
    return [-(-number * len(PRIORITIES) // priorities) for number in range(priorities)]


def level_below(priorities: int, priority: int) -> int:
    """The level that a priority falls into, where so many are told apart."""
    return max(level for level in levels_of(priorities) if level <= priority)


def check_priority(priority: object) -> None:
    """See that a priority is one, or none is given.

    Raises:
        InvalidPriority: it is something else.
    """
    if priority is not None and (
        not isinstance(priority, int) or isinstance(priority, bool) or priority not in PRIORITIES
    ):
        raise InvalidPriority(f"priority {priority!r:.100} is none: it must be a number from 0 to 9, the highest")


def level_for(topic: str, priorities: int, priority: int | None) -> int:
    """The level of a message's priority; without one it is the lowest.

    Args:
        topic: named in an error.
        priorities: how many levels the topic tells apart.

    Raises:
        InvalidPriority: it is none, or the topic has no levels: it would have no effect.
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
