"""List of what people have changed."""

from __future__ import annotations

from starlette.responses import Response

from emsworker.web.page import View, Visit

_PAGE = 50


def audit(visit: Visit) -> Response:
    """List the actions of people, the latest first."""
    rows = visit.shared.audit.list(after=visit.asked("after"), limit=_PAGE + 1)
    after = rows[_PAGE - 1].id if len(rows) > _PAGE else None
    return visit.render("audit.html", rows=rows[:_PAGE], after=after)


PAGES = (View("/audit", audit, level="operator"),)
