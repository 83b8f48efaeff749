"""Pages of the dashboard: the list of flows, one flow with its graph, and what an operator can do about them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.responses import Response

from emsworker.extending.database import Database
from emsworker.extending.errors import AccessDenied, ConfigError, Problem, SchemaMissing, WrongArguments
from emsworker.extending.values import PreviewDecoder, counted, in_utc, parse_time
from emsworker.flows.errors import FlowEnded, TooManySignals, UnknownFlow
from emsworker.flows.operating.admin import (
    STATES,
    FlowEntry,
    FlowFilter,
    Flows,
    as_shown,
    change_all,
    count_flow,
    count_given,
    read_states,
)
from emsworker.flows.operating.graph import draw, seconds_of
from emsworker.flows.rows import ENDED
from emsworker.web.actions import Change
from emsworker.web.events import Events, EventStream
from emsworker.web.page import MOST_COUNTED, View, Visit, read_number

_PAGE, _LONGEST = 50, 5
_FILTER = ("state", "name", "waits", "error", "attribute", "since", "until")
_COUNTS_S = 3.0
_END = ".end"
_WORDS = {"cancel": ("ready", "running", "waiting"), "retry": ("failed",)}


def _filter_of(given: dict[str, str], **more: Any) -> FlowFilter:
    """Return the filter of an address or a form.

    Raises:
        ConfigError: a state, an attribute or a time cannot be read.
    """
    name, equals, value = (attribute := given.get("attribute", "")).partition("=")
    if attribute and not (name and equals):
        raise ConfigError([Problem("attribute", repr(attribute), "write NAME=VALUE")])
    return FlowFilter(
        states=read_states([given["state"]] if "state" in given else []),
        name=given.get("name"),
        waits=given.get("waits"),
        error=given.get("error"),
        attributes={name: value} if attribute else {},
        since=_time("since", given.get("since")),
        until=_time("until", given.get("until")),
        **more,
    )


def _time(name: str, text: str | None) -> datetime | None:
    try:
        return None if text is None else in_utc(parse_time(text))
    except (ValueError, OverflowError):
        fix = "must be a time like 2026-01-31T12:00 (UTC if it names no zone)"
        raise ConfigError([Problem(name, repr(text), fix)]) from None


def _list(visit: Visit) -> Response:
    """List the flows that match a filter, with their number in each state and function."""
    given = {name: text for name in _FILTER if (text := visit.asked(name)) is not None}
    flows = Flows(visit.shared.database)
    flows.check()
    try:
        only = _filter_of(given)
        page = flows.page(only, after=visit.asked("after"), limit=_PAGE)
    except ConfigError as error:
        return visit.render(
            "flows/list.html", 400, given=given, problem=str(error), states=STATES, page=None, counts=()
        )
    counts = visit.shared.snapshot.get("flows", _COUNTS_S, lambda: flows.counts(FlowFilter(), most=MOST_COUNTED))
    totals: dict[tuple[str, str], list[Any]] = {}
    for one in counts:
        total = totals.setdefault((one.name, one.state), [0, False, one.oldest])
        total[0], total[1], total[2] = total[0] + one.count, total[1] or one.capped, min(total[2], one.oldest)
    rows = sorted((*key, *total) for key, total in totals.items())
    return visit.render("flows/list.html", given=given, problem=None, states=STATES, page=page, counts=rows)


def _show(visit: Visit) -> Response:
    """Show a flow: what it waits for, its graph, its steps, and the flows that it has called."""
    flows = Flows(visit.shared.database)
    flows.check()
    key = visit.place("id")
    found, note = visit.detailed(lambda details: flows.show(key, details=details))
    graph = draw(found.steps, visit.now)
    critical = graph.critical if graph else ()
    longest = sorted(critical, key=lambda step: -seconds_of(step, visit.now))[:_LONGEST]
    return visit.render(
        "flows/flow.html",
        found=found,
        flow=found.flow,
        note=note,
        graph=graph,
        longest=[(step, seconds_of(step, visit.now)) for step in longest],
        critical_s=sum(seconds_of(step, visit.now) for step in critical),
        took=lambda step: seconds_of(step, visit.now),
        shown=partial(_shown, visit, found.flow.topic or "", PreviewDecoder()),
        can=_acts(found.flow),
    )


def _stream_values(visit: Visit) -> Response:
    """Stream what a flow emits as server-sent events, from the one on that the browser had last, and then its state."""
    key, flows = visit.place("id"), Flows(visit.shared.database)
    flows.check()
    last = visit.request.headers.get("last-event-id") or visit.asked("after") or "0"
    if last.endswith(_END):
        return Response(status_code=204)  # by which a browser stops to come again
    after = read_number("last-event-id", last) or 0
    flows.find(key)

    def read() -> Events:
        nonlocal after
        flow, rows = flows.follow(key, after)
        texts = [_event(visit, flow.topic or "", number, raw) for number, raw, _ in rows]
        after = rows[-1][0] if rows else after
        is_last = flow.state in ENDED and not rows
        if is_last:
            texts.append(f"event: end\nid: {after}{_END}\ndata: {json.dumps({'state': flow.state})}\n\n")
        return Events("".join(texts).encode(), is_last)

    return EventStream(read)


def _event(visit: Visit, topic: str, number: int, raw: bytes) -> str:
    value, problem = as_shown(PreviewDecoder(), raw)
    if problem is not None:
        return f"event: problem\nid: {number}\ndata: {json.dumps(problem)}\n\n"
    return f"id: {number}\ndata: {json.dumps(visit.shared.redacted(topic, value))}\n\n"


def _acts(flow: FlowEntry) -> Sequence[str]:
    """Return what can be done about a flow."""
    if flow.state in _WORDS["cancel"]:
        return ("cancel", "signal")
    return ("retry",) if flow.state in ("failed", "cancelled") and not flow.undone else ()


def _shown(visit: Visit, topic: str, decoder: PreviewDecoder, raw: bytes | None) -> str | None:
    """Return a stored value as a reader may see it."""
    value, problem = as_shown(decoder, raw)
    if raw is None or problem is not None:
        return problem
    return json.dumps(visit.shared.redacted(topic, value), ensure_ascii=False)[:2000]


def _ask_all(visit: Visit) -> Response:
    """Ask for a typed confirmation before all flows of a filter are cancelled or retried."""
    what = visit.place("what")
    if what not in _WORDS:
        return visit.error(404, "There is no such page", "Flows can be cancelled and retried.")
    given = {name: text for name in _FILTER if (text := visit.asked(name)) is not None}
    only = _selected(what, given)
    count = 0
    for _ in Flows(visit.shared.database).each(only):
        count += 1
        if count >= MOST_COUNTED:
            break
    return visit.render("flows/all.html", what=what, given=given, count=count, capped=count >= MOST_COUNTED)


def _selected(what: str, given: dict[str, str]) -> FlowFilter:
    """Return which flows of a filter are changed: those in a state for it, unless the filter names one."""
    only = _filter_of(given, roots=True, undone=False) if what == "retry" else _filter_of(given)
    return only if only.states else replace(only, states=_WORDS[what])


def _told(show: Callable[[Visit], Response]) -> Callable[[Visit], Response]:
    """Tell of what cannot be done as an answer of its own kind."""

    def answer(visit: Visit) -> Response:
        try:
            return show(visit)
        except SchemaMissing as error:  # not every stream has flows
            return visit.error(404, "There are no flows", str(error))
        except UnknownFlow as error:
            return visit.error(404, "Not found", str(error))
        except (FlowEnded, TooManySignals, WrongArguments) as error:
            return visit.error(409, "That cannot be done", str(error))

    return answer


def _action(change: Callable[[Change, Flows], None]) -> Callable[[Visit], Response]:
    def show(visit: Visit) -> Response:
        assert visit.shared.operator is not None, "checked with the level of the page"
        one = Change(visit)
        change(one, Flows(visit.shared.operator))
        return visit.back(one.action)

    return _told(show)


def _needed(visit: Visit, name: str) -> str:
    text = visit.field(name)
    if text is None:
        raise ConfigError([Problem(name, "nothing", "this field is needed")])
    return text


def _cancel(change: Change, flows: Flows) -> None:
    """Cancel a flow, and those that it has called."""
    key = _needed(change.visit, "id")
    with change.recorded("cancel flow", key, count=count_flow):
        flows.cancel(key)


def _retry(change: Change, flows: Flows) -> None:
    """Run a flow again."""
    key, step = _needed(change.visit, "id"), change.visit.field("from")
    with change.recorded("retry flow", key, {"from": step} if step else None, count_flow):
        flows.retry(key, step)


def _signal(change: Change, flows: Flows) -> None:
    """Give a flow a signal."""
    key, name, text = _needed(change.visit, "id"), _needed(change.visit, "name"), change.visit.field("value")
    try:
        value = None if text is None else json.loads(text)
    except ValueError as error:
        raise ConfigError([Problem("value", repr(text), f"is no JSON: {error}")]) from None
    with change.recorded("signal flow", f"{key} {name}", count=count_given):
        flows.signal(key, name, value)


def _change_all(change: Change, flows: Flows) -> None:
    """Cancel or retry all flows of a filter, for at most some seconds; the page offers the remainder."""
    visit = change.visit
    what = visit.field("what")
    if what not in _WORDS:
        raise ConfigError([Problem("what", repr(what), f"must be one of {', '.join(_WORDS)}")])
    if (typed := visit.field("confirm")) != f"{what} all":
        raise ConfigError([Problem("confirmation", repr(typed or ""), f"type '{what} all'; nothing was changed")])
    given = {name: text for name in _FILTER if (text := visit.field(name)) is not None}
    only = _selected(what, given)
    target = ", ".join(f"{name} {value}" for name, value in given.items()) or "*"
    with change.recorded(f"{what} flows", target, given, count_flow):
        _, refused = change_all(flows, only, flows.cancel if what == "cancel" else flows.retry, change.stop_when_late())
    if refused:
        key, why = next(iter(refused.items()))
        raise ConfigError([Problem(counted(len(refused), "flow"), key, why)])


def search(database: Database, what: str) -> str | None:
    """Return the path of the flow with this id."""
    try:
        Flows(database).check()
        return f"/flows/one/{quote(Flows(database).find(what).id)}"
    except (AccessDenied, SchemaMissing, UnknownFlow):
        return None


def pages() -> Sequence[View]:
    """Return them."""
    return (
        View("/flows", _told(_list), title="Flows"),
        View("/flows/all/{what}", _told(_ask_all), "operator", changes=True),
        View("/flows/one/{id:path}", _told(_show), decodes=True),
        View("/flows/values/{id:path}", _told(_stream_values), "reader", decodes=True),
        *(
            View(path, _action(change), "operator", "POST", changes=True)
            for path, change in (
                ("/do/flows/cancel", _cancel),
                ("/do/flows/retry", _retry),
                ("/do/flows/signal", _signal),
                ("/do/flows/all", _change_all),
            )
        ),
    )
