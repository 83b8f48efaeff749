"""Changes: each by POST, for operators, with its row in the audit, and back to the page from which it came."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.responses import Response

from emsworker.extending.administration import (
    CANCEL,
    Admin,
    Audit,
    cancel_target,
    count_cancelled,
    count_changed,
    parse_place,
)
from emsworker.extending.errors import ConfigError, InvalidName, Problem, UnknownMessage
from emsworker.extending.processes import ticks
from emsworker.extending.stream import Replayed
from emsworker.extending.values import counted, parse_duration
from emsworker.web.dead import FILTER, filter_of
from emsworker.web.groups import FIELDS, planned, policy_of, selection_of
from emsworker.web.page import View, Visit, read_number

_PATIENCE_S = 15.0
_MOST_PLACES = 1000
_OF_SELECTED = {"requeue": "requeue dead letters", "delete": "delete dead letters"}
_OF_ALL = {"requeue": "requeue all dead letters", "delete": "delete all dead letters"}
_ARGUMENTS = {"args": list, "kwargs": dict}
_OF_SCHEDULE = {
    "run": "run schedule now",
    "pause": "pause schedule",
    "resume": "resume schedule",
    "delete": "delete schedule",
}


class _TimeIsUp(Exception):
    """Ends a long change between two of its transactions; what is committed stays."""


class Change:
    """Change that a visitor asks for.

    Attributes:
        admin: the stream, as the database user for changes.
        action: the id of its row in the audit; set while it is recorded.
    """

    def __init__(self, visit: Visit) -> None:
        assert visit.shared.operator is not None, "checked with the level of the page"
        self.visit, self._database = visit, visit.shared.operator
        self.admin = Admin(self._database)
        self.action: str | None = None

    @contextmanager
    def recorded(
        self, action: str, target: str, detail: Any = None, count: Callable[[object], int] = count_changed
    ) -> Iterator[None]:
        """Record what the block changes as one action."""
        text = (
            ""
            if detail in (None, {})
            else detail
            if isinstance(detail, str)
            else json.dumps(detail, ensure_ascii=False)
        )
        try:
            with Audit(self._database).record(self.visit.visitor.name, action, target, text, count) as self.action:
                yield
        except _TimeIsUp:
            pass
        finally:
            self.visit.shared.snapshot.clear()

    def stop_when_late(self) -> Callable[[Any], None]:
        """Return a function to be called after each transaction, which ends the change when its time is up."""
        until = ticks() + _PATIENCE_S

        def step(_: Any) -> None:
            if ticks() > until:
                raise _TimeIsUp

        return step

    def places(self) -> list[tuple[str, str, int, int]]:
        """Return what was selected: topic, group, partition and offset of each.

        Raises:
            ConfigError: nothing, or too much, was selected.
            InvalidName: it cannot be read.
        """
        chosen = self.visit.form.get("place", [])
        if not chosen or len(chosen) > _MOST_PLACES:
            fix = "select some rows first" if not chosen else f"select at most {_MOST_PLACES} rows at once"
            raise ConfigError([Problem("selection", counted(len(chosen), "row"), fix)])
        found = []
        for text in chosen:
            group, _, place = text.rpartition("|")
            if not group:
                raise InvalidName(f"{text!r} is not group|topic/partition/offset")
            topic, partition, offset = parse_place(place)
            found.append((topic, group, partition, offset))
        return found


def _action(change: Callable[[Change], None]) -> Callable[[Visit], Response]:
    def show(visit: Visit) -> Response:
        one = Change(visit)
        change(one)
        return visit.back(one.action)

    return show


def _needed(visit: Visit, name: str) -> str:
    text = visit.field(name)
    if text is None:
        raise ConfigError([Problem(name, "nothing", "this field is needed")])
    return text


def _confirmed(visit: Visit, wanted: str) -> None:
    """Check what was typed as a confirmation.

    Raises:
        ConfigError: it is something else; nothing was changed.
    """
    if (typed := visit.field("confirm")) != wanted:
        raise ConfigError([Problem("confirmation", repr(typed or ""), f"type {wanted!r}; nothing was changed")])


# -- dead letters ------------------------------------------------------------------------------------------------------


def _selected_dead(change: Change) -> None:
    """Requeue or delete the dead letters that are selected on a page."""
    what = _choice(change.visit, "what", "requeue", "delete")
    places = change.places()
    refs = []
    for topic, group, partition, offset in places:
        try:
            refs += change.admin.dead.find(f"{topic}/{partition}/{offset}", topic, group)
        except UnknownMessage:  # it is dead no longer
            continue
    names = sorted({f"{topic}/{group}" for topic, group, _, _ in places})
    with change.recorded(_OF_SELECTED[what], ", ".join(names), {"selected": len(places)}):
        (change.admin.dead.requeue if what == "requeue" else change.admin.dead.delete)(refs)


def _all_dead(change: Change) -> None:
    """Requeue or delete all dead letters that match a filter, for at most 15 s; the page offers the remainder."""
    visit = change.visit
    what = _choice(visit, "what", "requeue", "delete")
    _confirmed(visit, f"{what} all")
    given = {name: text for name in FILTER if (text := visit.field(name)) is not None}
    work = change.admin.dead.requeue_all if what == "requeue" else change.admin.dead.delete_all
    with change.recorded(_OF_ALL[what], _target_of(given), given):
        work(only=filter_of(given), progress=change.stop_when_late())


def _target_of(given: dict[str, str]) -> str:
    return "/".join(given.get(name, "*") for name in ("topic", "group"))


def _choice(visit: Visit, name: str, *words: str) -> str:
    text = visit.field(name)
    if text not in words:
        raise ConfigError([Problem(name, repr(text or ""), f"must be one of {', '.join(words)}")])
    return text


# -- single messages ---------------------------------------------------------------------------------------------------


def _retry_now(change: Change) -> None:
    """Make the selected retries due now."""
    places = change.places()
    groups: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for topic, group, partition, offset in places:
        groups.setdefault((topic, group), []).append((partition, offset))
    for topic, group in groups:
        change.admin.group(topic, group)
    with change.recorded(
        "retry now", ", ".join(f"{topic}/{group}" for topic, group in groups), {"selected": len(places)}
    ):
        for (topic, group), chosen in groups.items():
            change.admin.retry_now(topic, group, chosen)


def _cancel(change: Change) -> None:
    """Cancel a message in every group, also while it runs."""
    topic, message = _needed(change.visit, "topic"), _needed(change.visit, "id")
    with change.recorded(CANCEL, cancel_target(topic, message), count=count_cancelled):
        change.admin.cancel(topic, message)


# -- schedules ---------------------------------------------------------------------------------------------------------


def _schedule(change: Change) -> None:
    """Run a schedule now, pause, resume or delete it."""
    name, what = _needed(change.visit, "name"), _choice(change.visit, "what", *_OF_SCHEDULE)
    schedules = change.admin.schedules
    with change.recorded(_OF_SCHEDULE[what], name):
        if what == "run":
            schedules.run_now(name)
        elif what == "delete":
            schedules.delete(name, declared=False)
        else:
            (schedules.pause if what == "pause" else schedules.resume)(name)


def _add_schedule(change: Change) -> None:
    """Add a schedule, or replace the one of its name."""
    visit = change.visit
    name, task = _needed(visit, "name"), _needed(visit, "task")
    given = _given(visit, "cron", "timezone", "catch_up", "topic", "key", "tag")
    arguments = {name: value for name, kind in _ARGUMENTS.items() if (value := _json(visit, name, kind)) is not None}
    with change.recorded("add schedule", name, {"task": task, "every": visit.field("every"), **given}):
        change.admin.schedules.add(name, task, every=_every(visit), **given, **arguments)


def _change_schedule(change: Change) -> None:
    """Change what is given of a schedule that was added at run time."""
    visit = change.visit
    name, given = _needed(visit, "name"), _given(visit, "cron", "timezone", "catch_up")
    arguments = {name: _json(visit, name, kind) for name, kind in _ARGUMENTS.items()}
    with change.recorded("change schedule", name, {"every": visit.field("every"), **given}):
        change.admin.schedules.change(name, every=_every(visit), **given, **arguments)


def _given(visit: Visit, *names: str) -> dict[str, Any]:
    return {name: text for name in names if (text := visit.field(name)) is not None}


def _every(visit: Visit) -> float | None:
    text = visit.field("every")
    try:
        return None if text is None else parse_duration(text)
    except ValueError as error:
        raise ConfigError([Problem("every", repr(text), str(error))]) from None


def _json(visit: Visit, name: str, kind: type) -> Any:
    """Return a field in JSON, or ``None`` if it is empty.

    Raises:
        ConfigError: it is not JSON of this kind.
    """
    text = visit.field(name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError([Problem(name, repr(text[:100]), f"is not JSON: {error}")]) from None
    if not isinstance(value, kind):
        shape = "an array, like [17]" if kind is list else 'an object, like {"id": 17}'
        raise ConfigError([Problem(name, repr(text[:100]), f"must be {shape}")])
    return value


# -- alarms ------------------------------------------------------------------------------------------------------------


def _silence(change: Change) -> None:
    """Silence an alarm."""
    visit = change.visit
    rule, topic, group = _needed(visit, "rule"), visit.field("topic"), visit.field("group")
    length, reason = _needed(visit, "for"), visit.field("reason") or ""
    try:
        for_s = parse_duration(length)
    except ValueError as error:
        raise ConfigError([Problem("for", repr(length), str(error))]) from None
    detail = {"topic": topic, "group": group, "for": length, "reason": reason}
    with change.recorded("silence alarm", rule, detail, count=lambda result: 1):
        change.admin.alarms.silence(rule, for_s=for_s, topic=topic, group=group, reason=reason)


def _unsilence(change: Change) -> None:
    """End a silence."""
    number = read_number("silence", _needed(change.visit, "silence"), 0)
    with change.recorded("end silence", str(number)):
        change.admin.alarms.unsilence(number or 0)


# -- groups ------------------------------------------------------------------------------------------------------------


def _pause(change: Change) -> None:
    """Pause or resume a group."""
    topic, group = _needed(change.visit, "topic"), _needed(change.visit, "group")
    paused = _choice(change.visit, "what", "pause", "resume") == "pause"
    with change.recorded("pause group" if paused else "resume group", f"{topic}/{group}"):
        change.admin.change_group(topic, group, paused=paused)


def _task(change: Change) -> None:
    """Pause or resume a task of a group."""
    topic, group, task = (_needed(change.visit, name) for name in ("topic", "group", "task"))
    what = _choice(change.visit, "what", "pause", "resume")
    with change.recorded(f"{what} task", f"{topic}/{group}/{task}"):
        (change.admin.tasks.pause if what == "pause" else change.admin.tasks.resume)(topic, group, task)


def _limit(change: Change) -> None:
    """Change the rate and the concurrency of a group."""
    visit = change.visit
    topic, group = _needed(visit, "topic"), _needed(visit, "group")
    rate, most = visit.field("rate"), read_number("max_running", visit.field("max_running"), None, 65535)
    detail = {"rate": rate or "none", "max_running": "none" if most is None else most}
    with change.recorded("limit group", f"{topic}/{group}", detail, count=lambda result: 1):
        change.admin.limits.set(topic, group, rate=rate, max_running=most)


def _move(change: Change) -> None:
    """Reset a group, make it skip, or replay into it, as it was planned."""
    visit = change.visit
    kind = _choice(visit, "kind", *FIELDS)
    topic, group = visit.place("topic"), visit.place("group")
    _confirmed(visit, group)
    given = {name: text for name in FIELDS[kind] if (text := visit.field(name)) is not None}
    plan = planned(visit, change.admin, kind, given)
    partition = read_number("partition", given.get("partition"), None, 65535)
    if kind == "replay":
        with change.recorded("replay", f"{topic}/{group}", plan.given, count=_again):
            change.admin.replay(topic, group, selection_of(given)).run()
        return
    with change.recorded(f"{kind} group", f"{topic}/{group}", plan.given):
        if kind == "reset":
            change.admin.reset_group(topic, group, given["to"], partition=partition)
        else:
            change.admin.backlogs.skip(topic, group, policy_of(given), partition=partition)


def _again(result: object) -> int:
    return result.again if isinstance(result, Replayed) else 0


PAGES = tuple(
    View(path, _action(change), "operator", "POST", changes=True, decodes=change is _move)
    for path, change in (
        ("/do/dead", _selected_dead),
        ("/do/dead/all", _all_dead),
        ("/do/retries", _retry_now),
        ("/do/cancel", _cancel),
        ("/do/schedule", _schedule),
        ("/do/schedule/add", _add_schedule),
        ("/do/schedule/change", _change_schedule),
        ("/do/silence", _silence),
        ("/do/unsilence", _unsilence),
        ("/do/pause", _pause),
        ("/do/task", _task),
        ("/do/limit", _limit),
        ("/do/groups/{topic}/{group}", _move),
    )
)
