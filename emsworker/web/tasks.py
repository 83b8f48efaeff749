"""Tasks of all groups, or of one topic: what they ran, what waits, and the pause of single ones."""

from __future__ import annotations

from starlette.responses import Response

from emsworker.web.overview import MOST_LINES
from emsworker.web.page import View, Visit

_WITHIN = {"10 min": 600.0, "1 h": 3600.0, "6 h": 21_600.0, "24 h": 86_400.0}


def tasks(visit: Visit) -> Response:
    """List the tasks by topic, group and name."""
    topic, wanted = visit.asked("topic"), visit.asked("q") or ""
    within = visit.asked("within")
    within_s = _WITHIN.get(within or "", _WITHIN["1 h"])
    views, note = visit.detailed(lambda details: visit.shared.tasks(topic, within_s, details))
    found = [one for one in views if wanted in one.task]
    return visit.render(
        "tasks.html",
        views=found[:MOST_LINES],
        count=len(found),
        note=note,
        topics=[one.topic for one in views],
        names=[one.task for one in views],
        given={"topic": topic, "q": wanted or None, "within": within},
        spans=list(_WITHIN),
        counted=any(one.runs for one in views),
    )


PAGES = (View("/tasks", tasks),)
