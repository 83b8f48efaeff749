"""Trace of a message: where it came from, what every group did with it, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.responses import Response

from emsworker.extending.administration import GroupTrace, Trace, TraceState
from emsworker.extending.errors import AccessDenied, EmsError, UnknownMessage
from emsworker.extending.values import Order, Outcome, counted, uid_text
from emsworker.web.page import View, Visit
from emsworker.web.texts import duration, preview, short_client


@dataclass(frozen=True)
class Event:
    """Something that happened to a message, or will.

    Attributes:
        kind: the class of its mark: ``sent``, ``claimed``, ``good``, ``bad``, ``wait``.
    """

    at: datetime | None
    kind: str
    title: str
    text: str = ""
    error: str | None = None


@dataclass(frozen=True)
class Body:
    """Body of a message as it may be shown.

    Attributes:
        text: ``None`` if it is not shown; ``note`` then says why.
    """

    text: str | None
    note: str | None = None


def trace(visit: Visit) -> Response:
    """Show the trace of a message by its id or place, in each topic that has it."""
    what = visit.asked("id")
    if what is None:
        return visit.render("trace.html", what=None, found=[], delayed=(), cancelled=None, note=None)
    located, note = visit.detailed(lambda details: visit.shared.monitoring.locate(what, details=details))
    pages = [
        {
            "trace": one,
            "id": _id_of(one),
            "events": [(group, events_of(one, group)) for group in sorted(one.groups, key=_urgency)],
            "body": body_of(visit, one),
        }
        for one in located.traces
    ]
    return visit.render(
        "trace.html",
        what=what,
        found=pages,
        delayed=located.delayed,
        cancelled=located.cancelled,
        names_actor=visit.may("operator"),  # as the page of the audit does
        note=note,
    )


_KINDS = {Outcome.DONE: "good", Outcome.IGNORED: "good", Outcome.CANCELLED: "wait"}


def _urgency(group: GroupTrace) -> tuple[bool, str]:
    """Sort groups in which something is wrong, or happens, before those in which nothing does."""
    return group.state in (TraceState.DONE, TraceState.SKIPPED, TraceState.UNCLAIMED), group.group.name


def _id_of(one: Trace) -> str | None:
    return uid_text(one.message.uid) if one.message is not None and one.message.uid else None


def events_of(one: Trace, group: GroupTrace) -> list[Event]:
    """Return what happened to a message in a group, the earliest first, and what is to come."""
    happened = [*_sent(one), *_claimed(group), *_attempted(group)]
    return [*sorted(happened, key=lambda event: (event.at is None, event.at)), *_ended(group)]


def _by(name: str | None) -> str:
    return f"by {short_client(name)}" if name else ""


def _sent(one: Trace) -> Iterator[Event]:
    if one.message is not None:
        yield Event(one.message.born_at, "sent", "Sent", _by(one.message.producer_id))


def _claimed(group: GroupTrace) -> Iterator[Event]:
    if (claim := group.history.claim) is not None:
        count = counted(claim.hi - claim.lo + 1, "message")
        yield Event(
            claim.claimed_at, "claimed", "Claimed", f"with {count} from offset {claim.lo} {_by(claim.client_id)}"
        )


def _attempted(group: GroupTrace) -> Iterator[Event]:
    for attempt in group.history.attempts:
        kind = _KINDS.get(attempt.outcome, "bad")
        ran = f" after {duration(attempt.ran_ms / 1000)}" if attempt.ran_ms is not None else ""
        title = f"Attempt {attempt.attempt}: {attempt.outcome.value}{ran}"
        yield Event(attempt.ended_at, kind, title, _by(attempt.client_id), attempt.error)


def _ended(group: GroupTrace) -> Iterator[Event]:
    """Yield the end, or what the message waits for."""
    retry, dead, claim = group.history.retry, group.history.dead, group.history.claim
    if retry is not None and retry.claimed_at is not None:
        yield Event(retry.claimed_at, "claimed", "Claimed for its next attempt", _by(retry.client_id))
    elif retry is not None and retry.due_at is None:
        what = "messages of other keys" if group.group.order is Order.NONE else "an earlier message of its key"
        yield Event(None, "wait", "Blocked", f"waits for {what}")
    elif retry is not None:
        yield Event(retry.due_at, "wait", f"Attempt {retry.attempt + 1} is due")
    if dead is not None:
        yield Event(dead.dead_at, "bad", "Dead letter", f"after {counted(dead.attempts, 'attempt')}", dead.error)
    if group.state is TraceState.DONE and not group.history.attempts:
        yield Event(claim.progress_at if claim else None, "good", "Done", "in its first attempt")


def body_of(visit: Visit, one: Trace) -> Body:
    """Return the body of a message, decoded within the budget of a viewer and redacted."""
    if one.message is None:
        return Body(None, "Retention has deleted the message.")
    if not visit.may("reader"):
        return Body(None, "Bodies are shown to readers only.")
    if one.message.kind != "message":
        return Body(None, f"This is a {one.message.kind}: it has no body.")
    try:
        (message,) = visit.shared.admin.messages.get(f"{one.topic.name}/{one.partition}/{one.offset}", whole=False)
    except AccessDenied:
        return Body(None, "The database user may not read bodies.")
    except UnknownMessage:
        return Body(None, "Retention has deleted the message.")
    except EmsError as error:
        return Body(None, str(error))
    return shown_body(visit, one.topic.name, message.body, message.problem, message.text)


def shown_body(visit: Visit, topic: str, body: Any, problem: str | None, text: str | None) -> Body:
    """Return a body as it may be shown: decoded, redacted, and cut after 64 KB; one that is not decoded as text.

    Args:
        problem: why it is not decoded.
        text: the beginning of one that is not decoded.
    """
    if problem is not None:
        note = f"The body is not decoded: {problem}."
        if not text or visit.shared.redacts(topic):
            return Body(None, f"{note} `ems messages get` shows its text.")
        return Body(text, f"{note} This is its text, of 64 KB at most.")
    text, cut = preview(visit.shared.redacted(topic, body))
    return Body(text, "Only the first 64 KB are shown." if cut else None)


PAGES = (View("/trace", trace, decodes=True),)
