"""Clients and the beat, schedules, alarms, and the check of everything around the stream."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

from starlette.responses import Response

from emsworker.extending.administration import ClientView, Severity, check
from emsworker.web.overview import MOST_LINES
from emsworker.web.page import View, Visit

_CHECK_S = 15.0
_FIRING = 10  # alarms of one rule


def clients(visit: Visit) -> Response:
    """List the clients by process, and the leaders of the beat."""
    processes: dict[str, list[ClientView]] = defaultdict(list)
    for view in visit.shared.clients():
        processes[view.row.process_id].append(view)
    ordered = sorted(processes.values(), key=lambda views: (views[0].row.name, views[0].row.started_at))
    lines = accumulate(len(views) for views in ordered)
    shown = [views for views, line in zip(ordered, lines, strict=True) if line <= MOST_LINES] or ordered[:1]
    return visit.render("clients.html", processes=shown, count=len(ordered), leaders=visit.shared.leaders())


def schedules(visit: Visit) -> Response:
    """List the schedules of periodic tasks by name, a page at a time."""
    given = {name: visit.asked(name) for name in ("prefix", "tag")}
    page = visit.shared.schedules(given["prefix"] or "", given["tag"], visit.asked("after") or "", MOST_LINES)
    return visit.render("schedules.html", page=page, given=given)


def alarms(visit: Visit) -> Response:
    """List the rules of alarms, those that fire first, and the silences."""
    rules = sorted(visit.shared.alarms(), key=lambda one: (not one.firing, one.rule.name))
    return visit.render("alarms.html", rules=rules, silences=visit.shared.silences(), most=MOST_LINES, each=_FIRING)


def show_check(visit: Visit) -> Response:
    """Check everything around the stream that could break a promise."""
    findings = visit.shared.snapshot.get("check", _CHECK_S, lambda: check(visit.shared.url, None, environ={}))
    order = list(Severity)[::-1]
    return visit.render(
        "check.html",
        findings=sorted(findings, key=lambda one: order.index(one.severity)),
        at=visit.shared.snapshot.at("check"),
        bad=sum(one.severity is not Severity.OK for one in findings),
    )


PAGES = (
    View("/clients", clients),
    View("/schedules", schedules),
    View("/alarms", alarms),
    View("/check", show_check, "reader"),
)
