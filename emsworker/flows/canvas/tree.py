"""A canvas as it is kept: a tree in JSON, checked before anything is started.

A call is ``[TASK, ARGS, KWARGS, MORE]``, whose end is left out if it is empty; TASK is a place in the tree's list of
tasks. A chain is ``{"chain": [PART, ...]}``, a group ``{"group": [PART, ...]}``, and a chord is a chain of a group and
its body. Callbacks are ``link`` and ``link_error`` of a chain or group, or of MORE; with ``once`` those of errors are
called for the first one alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

from emsworker.extending.apps import UNKNOWN, Ems, PartialSignature, Task
from emsworker.extending.errors import ConfigError, Problem, WrongArguments
from emsworker.flows.canvas.words import Canvas, chord, first_calls, group, unrolled
from emsworker.flows.port import FlowFunction, FlowStore

_DEEPEST = 100
_TIMES = ("eta", "expires")
Node = list[Any] | dict[str, Any]


class Given(NamedTuple):
    """The values that a part is given by those before it."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]


ONE_VALUE = Given((UNKNOWN,), {})
"""In a check, where the value is not known."""


class TreeWriter:
    """Writes canvases of one flow.

    Args:
        app: whose tasks they call.
        store: that keeps the flow.

    Attributes:
        tasks: name, topic and group of each task.
    """

    def __init__(self, app: Ems, store: FlowStore) -> None:
        self._app, self._store = app, store
        self._places: dict[tuple[str, str, str], int] = {}
        self._open: dict[int, str] = {}

    @property
    def tasks(self) -> list[tuple[str, str, str]]:
        """Name, topic and group of each task of the parts that were written."""
        return [*self._places]

    def write(self, part: Any, given: Given) -> Node:
        """Write a part.

        Raises:
            WrongArguments, ConfigError: it cannot be run.
        """
        if id(part) in self._open:
            raise WrongArguments(f"{self._open[id(part)]} is a part of itself; nothing was started")
        if len(self._open) == _DEEPEST:
            raise WrongArguments(f"the canvas is nested more than {_DEEPEST} levels deep; nothing was started")
        self._open[id(part)] = repr(part)[:100]
        try:
            return self._write_call(part, given) if isinstance(part, PartialSignature) else self._write(part, given)
        finally:
            del self._open[id(part)]

    def _write(self, part: Canvas[Any], given: Given) -> Node:
        if isinstance(part, group):
            return {"group": [self.write(one, given) for one in part.tasks], **self._links(part)}
        if isinstance(part, chord) and part.body is None:
            raise WrongArguments(f"{part!r} has no body; give chord(header, body); nothing was started")
        if not part.tasks:
            raise WrongArguments(f"a {type(part).__name__} without parts has nothing to run; nothing was started")
        nodes = []
        for one, after in zip_longest(part.tasks, part.tasks[1:]):
            if after is not None and isinstance(one, group):
                nodes.append(self._write_header(one, after, given))
            else:
                nodes.append(self.write(one, given))
            given = ONE_VALUE
        return {"chain": nodes, **self._links(part)}

    def _write_header(self, header: group[Any], body: Any, given: Given) -> Node:
        """Write the header of a chord, whose body's callbacks of errors are called once if it fails."""
        plain: group[Any] = group(*unrolled(header))
        plain.callbacks, plain.errbacks = header.callbacks, header.errbacks
        node = self.write(plain, given)
        if body.errbacks:
            errbacks = [self._write_errback(one) for one in body.errbacks]
            return {"chain": [node], "link_error": errbacks, "once": True}
        return node

    def _write_call(self, call: PartialSignature[Any], given: Given) -> Node:
        if wrong := [name for name in ("task_id", "transaction") if call.options.get(name) is not None]:
            fix = "a call of a canvas has no such option; give the id or transaction of the whole to apply_async()"
            raise ConfigError([Problem(one, repr(call.options[one]), fix) for one in wrong])  # type: ignore[literal-required]
        args, kwargs = self._checked(call, given)
        more: dict[str, Any] = {**({"options": _written(call.options)} if call.options else {}), **self._links(call)}
        if call.immutable:
            more["immutable"] = True
        node = [self._number(call.task), args, kwargs, more]
        while len(node) > 2 and not node[-1]:
            node.pop()
        return node

    def _checked(self, call: PartialSignature[Any], given: Given) -> tuple[list[Any], dict[str, Any]]:
        """Return the call's own arguments as they are kept."""
        task = call.task
        if task.app is not self._app:
            raise WrongArguments(
                f"task {task.name!r} is of app {task.app.name!r}, and the canvas of {self._app.name!r}; "
                "nothing was started"
            )
        if isinstance(task, FlowFunction):
            task.check_kept_by(self._store)
        args, kwargs = task.body_of(*arguments(call.args, call.kwargs, given, call.immutable))
        if call.options:
            task.prepare(args, kwargs, **call.options).encode(self._app.settings)  # type: ignore[misc]
        return args[len(args) - len(call.args) :], {name: kwargs[name] for name in call.kwargs}

    def _links(self, part: Any) -> dict[str, Any]:
        links: dict[str, Any] = {}
        if part.callbacks:
            links["link"] = [self.write(one, ONE_VALUE) for one in part.callbacks]
        if part.errbacks:
            links["link_error"] = [self._write_errback(one) for one in part.errbacks]
        return links

    def _write_errback(self, part: Any) -> Node:
        first = next(first_calls(part), None)
        if first is None:
            raise WrongArguments(f"{part!r} of link_error calls nothing; nothing was started")
        return self.write(part, Given((UNKNOWN,) * taken_of_error(first.task, first.args, first.kwargs), {}))

    def _number(self, task: Task[..., Any]) -> int:
        return self._places.setdefault((task.name, task.topic, task.group), len(self._places))


def arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], given: Given, immutable: bool
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, with what it is given."""
    return ([*args], {**kwargs}) if immutable else ([*given.args, *args], {**kwargs, **given.kwargs})


def taken_of_error(task: Task[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return how much a callback of errors takes of one: request, error and text, or the id alone."""
    try:
        task.check_call([None] * 3 + [*args], kwargs)
    except WrongArguments:
        return 1
    return 3


def _written(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in options.items()}


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a call as they were before they were written."""
    return {
        name: datetime.fromisoformat(value) if name in _TIMES and isinstance(value, str) else value
        for name, value in options.items()
    }
