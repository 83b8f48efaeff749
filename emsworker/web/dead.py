"""Dead letters: by task and error class, in a list, one by one; and the confirmation of a change of all."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from starlette.responses import Response

from emsworker.extending.administration import DeadFilter
from emsworker.extending.errors import AccessDenied, ConfigError, EmsError, Problem, UnknownMessage
from emsworker.extending.values import parse_time
from emsworker.web.overview import MOST_LINES
from emsworker.web.page import MOST_COUNTED, View, Visit
from emsworker.web.trace import Body, shown_body

FILTER = ("topic", "group", "task", "error", "since", "until")
NO_TASK = "(none)"
_PAGE = 50


def filter_of(given: dict[str, str]) -> DeadFilter:
    """Return the filter of an address or a form.

    Raises:
        ConfigError: a time cannot be read.
    """
    task = given.get("task")
    return DeadFilter(
        topic=given.get("topic"),
        group=given.get("group"),
        task="" if task == NO_TASK else task,
        error=given.get("error"),
        since=_time("since", given.get("since")),
        until=_time("until", given.get("until")),
    )


def _time(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else parse_time(text)
    except (ValueError, OverflowError):
        fix = "must be a time like 2026-01-31T12:00 (UTC if it names no zone)"
        raise ConfigError([Problem(name, repr(text), fix)]) from None


def dead(visit: Visit) -> Response:
    """List the dead letters that match a filter, with their number in each class."""
    given = {name: text for name in FILTER if (text := visit.asked(name)) is not None}
    try:
        only = filter_of(given)
    except ConfigError as error:
        return visit.render("dead.html", 400, **_values(given, problem=str(error)))
    by_class = visit.shared.snapshot.get(
        ("classes", only), 3.0, lambda: visit.shared.admin.dead.classes(only, most=MOST_COUNTED, newest=MOST_LINES)
    )
    after, letters = visit.asked("after"), visit.shared.admin.dead
    page, note = visit.detailed(lambda details: letters.page(only, after=after, limit=_PAGE, details=details))
    return visit.render("dead.html", **_values(given, classes=by_class, page=page, note=note))


def _values(given: dict[str, str], **more: Any) -> dict[str, Any]:
    classes = more.get("classes", ())
    count = sum(one.count for one in classes)
    capped = any(one.capped for one in classes) or len(classes) >= MOST_LINES
    return {
        "given": given,
        "problem": None,
        "note": None,
        "page": None,
        "classes": (),
        "most": MOST_LINES,
        "no_task": NO_TASK,
        "count": count,
        "capped": capped,
    } | more


def letter(visit: Visit) -> Response:
    """Show one dead letter with its error, its headers and its body."""
    topic, group = visit.place("topic"), visit.place("group")
    place = f"{topic}/{visit.place('partition')}/{visit.place('offset')}"
    found = visit.shared.admin.dead.find(place, topic, group)
    if not found:
        raise UnknownMessage(f"{place} is no longer dead in group {group!r}")
    if not visit.may("reader"):
        return visit.error(403, "Not allowed", "Errors and bodies of dead letters are shown to readers only.")
    try:
        one = visit.shared.admin.dead.show(found[0], whole=False)
    except AccessDenied as error:
        return visit.error(403, "The database refuses it", f"The database user may not read dead letters. {error}")
    try:
        body = shown_body(visit, topic, one.body, one.body_error, one.body_text)
    except EmsError as error:
        body = Body(None, str(error))
    return visit.render("letter.html", letter=one, body=body)


def all_of_them(visit: Visit) -> Response:
    """Ask for a typed confirmation before all dead letters of a filter are requeued or deleted."""
    what = visit.place("what")
    if what not in ("requeue", "delete"):
        return visit.error(404, "There is no such page", "Dead letters can be requeued and deleted.")
    given = {name: text for name in FILTER if (text := visit.asked(name)) is not None}
    classes = visit.shared.admin.dead.classes(filter_of(given), most=MOST_COUNTED, newest=MOST_LINES)
    values = _values(given, classes=classes)
    return visit.render("all.html", what=what, **values)


PAGES = (
    View("/dead", dead),
    View("/dead/all/{what}", all_of_them, "operator", changes=True),
    View("/dead/{topic}/{group}/{partition}/{offset}", letter, decodes=True),
)
