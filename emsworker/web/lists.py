"""Lists of messages that wait for their time, wait for a retry, or run."""

from __future__ import annotations

from starlette.responses import Response

from emsworker.web.overview import MOST_LINES
from emsworker.web.page import View, Visit

_PAGE = 50


def _known(visit: Visit) -> list[tuple[str, str]]:
    """Return topics and groups, those with the most lag, to complete what is typed into a filter."""
    return [(lag.topic.name, lag.group.name) for lag in visit.shared.standing(MOST_LINES).groups]


def delayed(visit: Visit) -> Response:
    """List the messages that are sent later, the next first."""
    topic, after = visit.asked("topic"), visit.asked("after")
    lists = visit.shared.admin.lists
    page, note = visit.detailed(lambda details: lists.delayed(topic, after=after, limit=_PAGE, details=details))
    return visit.render("delayed.html", page=page, note=note, topic=topic, known=_known(visit))


def retries(visit: Visit) -> Response:
    """List the messages that wait for their next attempt, the next first."""
    topic, group, after = visit.asked("topic"), visit.asked("group"), visit.asked("after")
    lists = visit.shared.admin.lists
    page, note = visit.detailed(lambda details: lists.retries(topic, group, after=after, limit=_PAGE, details=details))
    return visit.render("retries.html", page=page, note=note, topic=topic, group=group, known=_known(visit))


def running(visit: Visit) -> Response:
    """List what clients run now."""
    topic, group, after = visit.asked("topic"), visit.asked("group"), visit.asked("after")
    page = visit.shared.admin.lists.running(topic, group, after=after, limit=_PAGE)
    return visit.render("running.html", page=page, topic=topic, group=group, known=_known(visit))


PAGES = (View("/delayed", delayed), View("/retries", retries), View("/running", running))
