"""Runs canvases: a flow of each group with tasks, whose argument is the tree.

A part that is a canvas itself, within a group, is a flow of its own, so that no run replays more than its own level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from emsworker.extending.apps import Ems, Route, Signature
from emsworker.extending.errors import UnknownTask
from emsworker.extending.values import uid_text
from emsworker.flows.canvas.tree import Given, Node, TreeWriter, arguments, read_options, taken_of_error
from emsworker.flows.canvas.words import NAME, Canvas, CanvasRunner, first_calls
from emsworker.flows.errors import CallFailed
from emsworker.flows.flow import Flow
from emsworker.flows.handle import FlowHandle
from emsworker.flows.places import CallPlace
from emsworker.flows.port import FlowStore
from emsworker.flows.rows import CALL, GATHER, StepRow, StoredError
from emsworker.flows.starting import child_key
from emsworker.flows.task import FlowTask

Later = Callable[[], Any]


class _CanvasFailed(CallFailed):
    """A call of a canvas has failed, and with it the level.

    Args:
        calls: of the callbacks of that error.
    """

    def __init__(self, error: CallFailed, calls: Sequence[Signature[Any]]) -> None:
        super().__init__(error.step, error.error_type, error.message, error.place)
        self.calls = calls


class CanvasTask(FlowTask[..., Any], CanvasRunner):
    """The function that runs the canvases of one group."""

    def __init__(self, app: Ems, name: str, route: Route) -> None:
        options = app.registry.options({})
        super().__init__(app, self._interpret, name, options, 1, topic=route.topic, group=route.group)

    def _interpret(self, flow: Flow, tree: Mapping[str, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return _Level(self, flow, tree["tasks"]).value(tree["root"], lambda: Given(args, kwargs))()

    def check_kept_by(self, store: FlowStore) -> None:
        """Check nothing: a canvas has no transactions."""

    def failure_of(self, error: Exception) -> StoredError:
        """Return the failure of the call with which a canvas ends: it has no error of its own."""
        return (
            StoredError(error.error_type, error.message) if isinstance(error, CallFailed) else super().failure_of(error)
        )

    def last_calls(self, error: Exception) -> Sequence[Signature[Any]]:
        """Return the callbacks of the error: they are called with the end of the flow, so once."""
        return error.calls if isinstance(error, _CanvasFailed) else ()

    def start_canvas(
        self, canvas: Canvas[Any], args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
    ) -> FlowHandle[Any]:
        """Start a canvas; see :meth:`Canvas.apply_async`."""
        tree, first = self.write(canvas, Given(args, kwargs)), next(first_calls(canvas))
        given = [[*args], {**kwargs}] if first.immutable else first.task.dump_arguments([*args], {**kwargs})
        return self.start(tree, *given, **options)

    def build_value(self, value: Any, version: int, args: Sequence[Any]) -> Any:
        """Return the value of a canvas, from plain JSON: what the tasks of its last calls return."""
        tree = args[0]
        return self._build(tree["tasks"], tree["root"], value)

    def _build(self, tasks: Sequence[Sequence[str]], node: Node, value: Any) -> Any:
        if isinstance(node, list):
            name, topic, group = tasks[node[0]]
            task = self.flow_app.registry.find_task(topic, name, group)
            return value if task is None else task.build_result(value)
        if "group" in node:
            return [self._build(tasks, *one) for one in zip(node["group"], value, strict=True)]
        return self._build(tasks, node["chain"][-1], value)

    def signature_of(self, part: Any) -> Signature[Any]:
        """Return the call of a canvas, or of a call with callbacks, that another flow makes: it is called as a flow.

        Raises:
            WrongArguments, ConfigError: it cannot be run.
        """
        return Signature(self, (self.write(part, Given((), {})), [], {}), {})

    def write(self, canvas: Any, given: Given) -> dict[str, Any]:
        """Return the tree of a canvas.

        Raises:
            WrongArguments, ConfigError: it cannot be run.
        """
        writer = TreeWriter(self.flow_app, self.store)
        root = writer.write(canvas, given)
        return {"tasks": writer.tasks, "root": root}


def make(route: Route, name: str) -> CanvasTask | None:
    """Return the task that runs the canvases of a group."""
    app = cast("Ems", next(iter(route.tasks.values())).app)
    return CanvasTask(app, name, route) if name == NAME else None


class _Level:
    """One level of a canvas: what its flow does itself.

    Values are asked for as late as possible: a run that replays a chain reads that of its last step alone.

    Args:
        tasks: name, topic and group of the tasks of the tree.
    """

    def __init__(self, task: CanvasTask, flow: Flow, tasks: Sequence[Sequence[str]]) -> None:
        self._task, self._run, self._tasks = task, flow.run, tasks
        self._parts: dict[int, Sequence[Node]] = {}

    def value(self, node: Node, given: Callable[[], Given]) -> Later:
        """Run a part of this level, and return its value, to be asked for later; its callbacks are called before."""
        links = _more(node)
        if "link" not in links and "link_error" not in links:
            return self._value(node, given)
        value, failed = self._outcome(node, given)
        if failed:
            raise self._failed(failed[: 1 if "once" in links else None], links.get("link_error", ()))
        if callbacks := links.get("link"):
            calls = [self._signature(one, Given((value,), {})) for one in callbacks]
            self._run.calls(GATHER, "link", calls, leaves=False)  # the flow goes on at once
        return lambda: value

    def _value(self, node: Node, given: Callable[[], Given]) -> Later:
        if isinstance(node, list):
            row = self._calls(CALL, self._name(node), [_without_links(node)], given)
            return lambda: self._run.value_of(row)
        if "group" in node:
            row = self._group(node, given)
            return lambda: self._run.values_of(row, errors=False)
        *before, last = node["chain"]
        return self.value(last, self._after(before, given))

    def _group(self, node: dict[str, Any], given: Callable[[], Given]) -> StepRow:
        parts = node["group"]
        names = ", ".join(dict.fromkeys(map(self._name, parts))) or "nothing"
        return self._calls(GATHER, names[:190], parts, given)

    def _outcome(self, node: Node, given: Callable[[], Given]) -> tuple[Any, list[CallFailed]]:
        """Return the value of a part, or its failures: several of a group, and of a chain that ends with one."""
        try:
            if isinstance(node, dict) and "chain" in node and not _has_links(node["chain"][-1]):
                *before, last = node["chain"]
                return self._outcome(last, self._after(before, given))
            if isinstance(node, dict) and "group" in node:
                values = self._run.values_of(self._group(node, given), errors=True)
                return values, [one for one in values if isinstance(one, CallFailed)]
            return self._value(node, given)(), []
        except CallFailed as error:
            return None, [error]

    def _after(self, parts: Sequence[Node], given: Callable[[], Given]) -> Callable[[], Given]:
        """Run parts one after another, and return what is given to what comes after them."""
        for part in parts:
            given = _one(self.value(part, given))
        return given

    def _calls(self, kind: str, name: str, parts: Sequence[Node], given: Callable[[], Given]) -> StepRow:
        calls: Sequence[Signature[Any]] | None = None
        if not self._run.history.knows(kind, name):  # then what ran before has ended, perhaps with an error
            known = given()
            calls = [self._signature(part, known) for part in parts]
        row = self._run.calls(kind, name, calls, leaves=True)
        self._parts[row.number] = parts
        return row

    def _failed(self, failed: Sequence[CallFailed], errbacks: Sequence[Node]) -> _CanvasFailed:
        """Return the error with which the level ends, and what is called then."""
        calls = [call for error in failed if isinstance(error, _CanvasFailed) for call in error.calls]
        calls += [self._signature(one, self._error(one, error)) for error in failed for one in errbacks]
        return _CanvasFailed(failed[0], calls)

    def _error(self, errback: Node, error: CallFailed) -> Given:
        """Return what a callback of errors is given."""
        step, number = error.place
        part = self._parts[step][number]
        first = _first_call(errback)
        if self._is_flow(part):
            request = {"id": child_key(self._run.flow.key, step, number), "task": self._name(part)}
        else:
            place = CallPlace(self._run.store.stream_id, self._run.flow.id, step, number)
            request = {"id": uid_text(place.uid), "task": self._name(part)}
        if taken_of_error(self._find(first), *_args(first)) == 1:
            return Given((request["id"],), {})
        known = {"type": error.error_type, "message": error.message}
        text = f"{request['task']} {request['id']}: {error.error_type}: {error.message}"
        return Given((request, known, text), {})

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _signature(self, node: Node, given: Given) -> Signature[Any]:
        """Return the call of a part."""
        if isinstance(node, dict) or _has_links(node):
            tree = {"tasks": self._tasks, "root": node}
            return Signature(self._task, (tree, [*given.args], {**given.kwargs}), {})
        more = _more(node)
        args, kwargs = arguments(*_args(node), given, more.get("immutable", False))
        options: Any = read_options(more.get("options", {}))
        return Signature(self._find(node), tuple(args), kwargs, options)

    def _is_flow(self, node: Node) -> bool:
        return isinstance(node, dict) or _has_links(node) or isinstance(self._find(node), FlowTask)

    def _name(self, node: Node) -> str:
        return NAME if isinstance(node, dict) else self._tasks[node[0]][0]

    def _find(self, node: Node) -> Any:
        assert isinstance(node, list)
        name, topic, group = self._tasks[node[0]]
        task = self._task.flow_app.registry.find_task(topic, name, group)
        if task is None:
            raise UnknownTask(f"task {name!r} of {topic}/{group}, which a canvas calls, is not known to this worker")
        return task


def _one(later: Later) -> Callable[[], Given]:
    return lambda: Given((later(),), {})


def _more(node: Node) -> Mapping[str, Any]:
    return node if isinstance(node, dict) else node[3] if len(node) > 3 else {}


def _has_links(node: Node) -> bool:
    return not _more(node).keys().isdisjoint(("link", "link_error"))


def _without_links(node: list[Any]) -> list[Any]:
    return [*node[:3], {name: value for name, value in _more(node).items() if not name.startswith("link")}]


def _args(node: Sequence[Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return node[1], node[2] if len(node) > 2 else {}


def _first_call(node: Node) -> list[Any]:
    """Return the first call of a part, which decides what the whole is given."""
    while isinstance(node, dict):
        node = node.get("group") or node.get("chain") or []
        node = next(one for one in node if isinstance(one, list) or one.get("chain") or one.get("group"))
    return node
