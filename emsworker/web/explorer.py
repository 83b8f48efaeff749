"""Explorer of messages: by predicate, from a time, around a place; and the search field of the header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.responses import RedirectResponse, Response

from emsworker.extending.administration import (
    BEGINNING_BYTES,
    MessageOutline,
    Selection,
    StoredMessage,
    encode_token,
    list_states,
    parse_place,
)
from emsworker.extending.errors import AccessDenied, ConfigError, EmsError, InvalidName
from emsworker.extending.values import COMPRESSION, TASK_HEADER, PreviewDecoder, parse_uid
from emsworker.web.overview import MOST_LINES
from emsworker.web.page import View, Visit
from emsworker.web.texts import preview

_PAGE = 50
_AROUND = 12
_EXCERPT = 100  # characters of a body in a list
_SCAN = 20_000
_SEARCH_S = 0.1  # bodies of any size, and a server as busy as it likes: a page is answered, and its reader goes on


def messages(visit: Visit) -> Response:
    """Search the messages of a topic."""
    longest = visit.shared.topic_standing(MOST_LINES)
    topics = [one.topic.name for one in longest.topics]
    topic = visit.asked("topic") or (topics[0] if topics else None)
    given = {name: visit.asked(name) for name in ("from", "to", "key", "tag", "task", "where", "partition", "after")}
    values: dict[str, Any] = {
        "topics": sorted(topics),
        "every": longest.count is not None and longest.count <= len(topics),
        "topic": topic,
        "given": given,
        "newest": visit.asked("order") != "oldest",
        "page": None,
        "outline": None,
        "states": {},
        "excerpts": {},
        "problem": None,
        "scan": _SCAN,
        "limit": _PAGE,
    }
    if topic is None:
        return visit.render("messages.html", **values)
    visit.shared.admin.topic(topic)
    try:
        values |= _found(visit, topic, given, bool(values["newest"]))
    except (ConfigError, InvalidName) as error:
        return visit.render("messages.html", 400, **values | {"problem": str(error)})
    return visit.render("messages.html", **values)


def _found(visit: Visit, topic: str, given: dict[str, str | None], newest: bool) -> dict[str, object]:
    """Return a page of messages; a viewer, who reads no headers, gets a plain list by place."""
    partition = visit.number("partition", most=65535)
    if not visit.may("reader"):
        lists = visit.shared.admin.lists
        outline = lists.messages(topic, partition, after=given["after"], limit=_PAGE, newest=newest)
        shown = [(one.partition, one.offset) for one in outline.rows if one.kind == "message"]
        return {"outline": outline, "states": list_states(visit.shared.database, topic, shown)}
    selection = Selection(
        start=given["from"],
        end=given["to"],
        partition=partition,
        keys=(given["key"],) if given["key"] else (),
        tags=(given["tag"],) if given["tag"] else (),
        where=_predicate(given["where"], given["task"]),
    )
    after = read_after(given["after"])
    found = visit.shared.admin.messages.list(
        topic, selection, after=after, limit=_PAGE, scan=_SCAN, newest=newest, bodies=False, within_s=_SEARCH_S
    )
    return {
        "page": found,
        "states": list_states(visit.shared.database, topic, (one.place for one in found.messages)),
        "excerpts": _excerpts(visit, topic, found.messages),
    }


def _excerpts(visit: Visit, topic: str, found: Sequence[StoredMessage]) -> dict[tuple[int, int], str]:
    """Return the beginning of each body on one line; of one that is compressed, or cannot be redacted, nothing.

    Only the first kilobyte of a body is read, and decoded if that is all of it: JSON or MessagePack, never YAML.
    """
    try:
        bodies = visit.shared.admin.messages.beginnings(topic, found)
    except AccessDenied:  # of a role that reads no bodies
        return {}
    decoder = PreviewDecoder()
    excerpts = {}
    for one in found:
        raw = bodies.get(one.place)
        if raw is None or one.problem is not None or COMPRESSION in one.headers:
            continue
        whole = decoder.preview_of(one.headers, raw) if one.size <= BEGINNING_BYTES else None
        if whole is not None and whole.problem is None:
            text, _ = preview(visit.shared.redacted(topic, whole.body))
        elif visit.shared.redacts(topic):
            continue
        else:
            text = raw.decode(errors="backslashreplace")
        line = " ".join(text.split())
        excerpts[one.place] = f"{line[:_EXCERPT]}…" if len(line) > _EXCERPT or one.size > len(raw) else line
    return excerpts


def _predicate(where: str | None, task: str | None) -> str | None:
    if task is None:
        return where
    of_task = "header('{}') = '{}'".format(TASK_HEADER, task.replace("'", "''"))
    return of_task if where is None else f"({where}) and {of_task}"


def read_after(text: str | None) -> tuple[int, int] | None:
    """Parse a place, ``partition/offset``, after which a page begins.

    Raises:
        InvalidName: it is none.
    """
    if text is None:
        return None
    if not re.fullmatch(r"\d{1,5}/\d{1,19}", text):
        raise InvalidName(f"after = {text!r} is not partition/offset")
    partition, offset = text.split("/")
    return int(partition), int(offset)


def around(visit: Visit) -> Response:
    """Show the messages before and after a place."""
    topic, partition, offset = parse_place("/".join(visit.place(name) for name in ("topic", "partition", "offset")))
    visit.shared.admin.topic(topic)
    selection = Selection(start=str(max(1, offset - _AROUND)), end=str(offset + _AROUND), partition=partition)
    found: Sequence[StoredMessage | MessageOutline]
    if visit.may("reader"):
        found = visit.shared.admin.messages.list(topic, selection, limit=2 * _AROUND + 1, bodies=False).messages
    else:
        begin = encode_token((partition, max(0, offset - _AROUND - 1)))
        found = visit.shared.admin.lists.messages(
            topic, partition, after=begin, limit=2 * _AROUND + 1, newest=False
        ).rows
    return visit.render("around.html", topic=topic, partition=partition, offset=offset, found=found)


def jump(visit: Visit) -> Response:
    """Go to what was typed into the search field: what an extension knows, a message, a place, a topic or a group.

    An extension is asked first: what it has may be named like a message.
    """
    what = visit.asked("q")
    if what is None:
        return RedirectResponse(visit.url("/"), 303)
    if (path := visit.shared.find_in_extensions(what)) is not None:
        return RedirectResponse(visit.url(path), 303)
    try:
        parse_uid(what)
        return RedirectResponse(visit.url("/trace", id=what), 303)
    except EmsError:
        pass
    try:
        topic, partition, offset = parse_place(what)
        return RedirectResponse(visit.url("/trace", id=f"{topic}/{partition}/{offset}"), 303)
    except EmsError:
        pass
    if (found := visit.shared.find(what)) is not None:
        name, group = _quoted(found[0].name), found[1]
        path = f"/topics/{name}" if group is None else f"/groups/{name}/{_quoted(group)}"
        return RedirectResponse(visit.url(path), 303)
    return visit.error(
        404, "Nothing of that name", f"{what!r} is no message id, place (topic/partition/offset), topic, group or flow."
    )


def _quoted(name: str) -> str:
    return quote(name, safe="")


PAGES = (
    View("/messages", messages, decodes=True),
    View("/messages/{topic}/{partition}/{offset}", around),
    View("/go", jump),
)
