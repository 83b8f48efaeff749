"""Canvas: chains, groups and chords of calls, each of which is one flow.

They are plain values until :meth:`Canvas.delay` writes them down as the tree of :mod:`emsworker.flows.canvas.tree`.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Generic, Self, TypeVar, cast, overload

from emsworker.extending.apps import Ems, PartialSignature, Signature, Task
from emsworker.extending.errors import WrongArguments
from emsworker.extending.settings import is_whole
from emsworker.flows.handle import FlowHandle
from emsworker.flows.port import FlowFunction

NAME = "ems.canvas"

R = TypeVar("R")
T = TypeVar("T")


class Canvas(Generic[R]):
    """Calls that are run as one flow.

    Attributes:
        tasks: its parts.
        callbacks, errbacks: called when all of it has succeeded, or failed for good.
    """

    callbacks: tuple[Part[Any], ...] = ()
    errbacks: tuple[Part[Any], ...] = ()

    def __init__(self, tasks: Iterable[Any]) -> None:
        self.tasks: tuple[Part[Any], ...] = tuple(map(_checked, tasks))

    # -- composing -----------------------------------------------------------------------------------------------------

    def __or__(self, after: Part[T]) -> chain[T]:
        """Return a chain of this canvas and what comes after it."""
        return chain(self, after)

    def link(self, callback: Part[Any]) -> None:
        """Have something called with the value, when all of it has succeeded; what follows does not wait."""
        self.callbacks = (*self.callbacks, _checked(callback))

    def link_error(self, errback: Part[Any]) -> None:
        """Have something called if it fails for good; of a group, once for each of its parts that fails.

        If it takes three arguments more than it has, it is given the request (a dict with ``id`` and ``task``), the
        error (a dict with ``type`` and ``message``) and a text for people; otherwise the id of what has failed. One
        that was made by :meth:`Task.si` is given nothing.
        """
        self.errbacks = (*self.errbacks, _checked(errback))

    def on_error(self, errback: Part[Any]) -> Self:
        """Do as :meth:`link_error` does, and return the canvas."""
        self.link_error(errback)
        return self

    def set(self, **options: Any) -> Self:
        """Return the canvas with options for the calls with which it begins; see :meth:`Task.apply_async`.

        Raises:
            ConfigError: an option is unknown.
        """
        changed = copy.copy(self)
        changed.tasks = tuple(part.set(**options) for part in self.tasks)
        return changed

    # -- starting ------------------------------------------------------------------------------------------------------

    def delay(self, *args: Any, **kwargs: Any) -> FlowHandle[R]:
        """Start it, and return after the commit; the arguments are those of the calls with which it begins."""
        return self.apply_async(args, kwargs)

    __call__ = delay

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        id: str | None = None,
        transaction: Any = None,
        attributes: Mapping[str, Any] | None = None,
        timeout: float | str | None = None,
        link: Part[Any] | None = None,
        link_error: Part[Any] | None = None,
        **options: Any,
    ) -> FlowHandle[R]:
        """Start it, and return after the commit.

        Args:
            args, kwargs: of the calls with which it begins: they come before their own.
            id, transaction, attributes, timeout: of the flow, as in :meth:`FlowTask.start`.
            link, link_error: see the methods of these names.
            options: of the calls with which it begins, as in :meth:`Task.apply_async`.

        Raises:
            WrongArguments: it is empty or holds itself, or a task does not take what it would be given; nothing was
                started.
            EncodeError, ConfigError, FlowExists: as :meth:`FlowTask.start` and :meth:`Task.apply_async`.
        """
        started = self.set(**options) if options else copy.copy(self)
        for callback in () if link is None else (link,):
            started.link(callback)
        for errback in () if link_error is None else (link_error,):
            started.link_error(errback)
        return task_of(started).start_canvas(
            started, args, kwargs or {}, id=id, transaction=transaction, attributes=attributes, timeout=timeout
        )

    async def adelay(self, *args: Any, **kwargs: Any) -> FlowHandle[R]:
        """Start it from a coroutine; see :meth:`Ems.asend` for what a cancellation does."""
        return await self.aapply_async(args, kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        transaction: Any = None,
        **options: Any,
    ) -> FlowHandle[R]:
        """Start it from a coroutine; see :meth:`apply_async`."""

        def send(transaction: Any) -> FlowHandle[R]:
            return self.apply_async(args, kwargs, transaction=transaction, **options)

        task = task_of(self)
        return await task.flow_app.publisher.in_pool("a canvas", task.topic, send, transaction)

    def __repr__(self) -> str:
        names = ", ".join(_name(part) for part in self.tasks[:5])
        return f"<{type(self).__name__} {names}{', ...' if len(self.tasks) > 5 else ''}>"


Part = PartialSignature[R] | Canvas[R]
"""A part of a canvas."""


class chain(Canvas[R]):
    """Parts that run one after another, each of which is given the value of the one before.

    A group that another part follows is the header of a chord: the part gets the list of its values. As in Celery, a
    group that is directly in such a group is one with it.

    Args:
        parts: calls and canvases, or one iterable of them.
    """

    @overload
    def __init__(self, last: Part[R], /) -> None: ...
    @overload
    def __init__(self, first: Part[Any], last: Part[R], /) -> None: ...
    @overload
    def __init__(self, first: Part[Any], second: Part[Any], last: Part[R], /) -> None: ...
    @overload
    def __init__(self, first: Part[Any], second: Part[Any], third: Part[Any], last: Part[R], /) -> None: ...
    @overload
    def __init__(self: chain[Any], *parts: Part[Any] | Iterable[Part[Any]]) -> None: ...
    def __init__(self, *parts: Any) -> None:
        super().__init__(_flat(_given(parts)))

    def set(self, **options: Any) -> Self:
        """Return the chain with options for its first part."""
        changed = copy.copy(self)
        changed.tasks = (*(part.set(**options) for part in self.tasks[:1]), *self.tasks[1:])
        return changed


class group(Canvas[list[R]], Generic[R]):
    """Parts that run side by side; their values are a list, in their order.

    Args:
        parts: calls and canvases, or one iterable of them.
    """

    @overload
    def __init__(self, *parts: Part[R]) -> None: ...
    @overload
    def __init__(self, parts: Iterable[Part[R]], /) -> None: ...
    def __init__(self, *parts: Any) -> None:
        found = _given(parts)
        if len(found) == 1 and _is_plain(found[0], group):
            found = [*found[0].tasks]
        super().__init__(found)

    def __len__(self) -> int:
        return len(self.tasks)


class chord(Canvas[R]):
    """A group, its header, and a body that is given the list of its values once all of them are there.

    ``chord(header)(body)`` starts it.
    """

    @overload
    def __init__(self, header: Iterable[Part[Any]] | Part[Any], body: Part[R]) -> None: ...
    @overload
    def __init__(self: chord[Any], header: Iterable[Part[Any]] | Part[Any], body: None = None) -> None: ...
    def __init__(self, header: Any, body: Part[R] | None = None) -> None:
        self.header = header if isinstance(header, group) else group(*_given((header,)))
        self.body = body
        super().__init__((self.header, *(() if body is None else (body,))))

    def __call__(self, body: Part[T] | None = None, **options: Any) -> FlowHandle[Any]:
        """Start it, with this body instead of its own; ``options`` as in :meth:`apply_async`."""
        started = self if body is None else self._with(self.header, body)
        return started.apply_async(**options)

    def set(self, **options: Any) -> Self:
        """Return the chord with options for the calls of its header."""
        return self._with(self.header.set(**options), self.body)

    def _with(self, header: group[Any], body: Part[Any] | None) -> Self:
        changed = copy.copy(self)
        changed.header, changed.body = header, body
        changed.tasks = (header, *(() if body is None else (_checked(body),)))
        return changed


def chunks(task: Task[..., R], items: Iterable[Sequence[Any]], n: int) -> group[list[R]]:
    """Return a group of calls, each of which runs a task for at most ``n`` lists of arguments; see :meth:`Task.chunks`.

    Raises:
        WrongArguments: ``n`` is no whole number from 1, or as :meth:`Task.starmap`.
    """
    if not is_whole(n) or n < 1:
        raise WrongArguments(f"chunks of {task.name!r}: n = {n!r:.100}; it must be a whole number from 1")
    left = iter(items)
    return group(task.starmap(part) for part in iter(lambda: list(islice(left, n)), []))


def _given(parts: tuple[Any, ...]) -> list[Any]:
    """Return parts that were given one by one, or as one iterable."""
    if len(parts) == 1 and not isinstance(parts[0], PartialSignature | Canvas) and isinstance(parts[0], Iterable):
        return [*parts[0]]
    return [*parts]


def _flat(parts: Iterable[Any]) -> Iterable[Any]:
    """Yield parts; those of a chain that has no callbacks of its own instead of it."""
    for part in parts:
        if _is_plain(part, chain):
            yield from part.tasks
        else:
            yield part


def _is_plain(part: Any, kind: type[Canvas[Any]]) -> bool:
    return isinstance(part, kind) and not part.callbacks and not part.errbacks


def unrolled(header: group[Any]) -> list[Any]:
    """Return the parts of a chord's header; those of a group in it instead of that group."""
    found: list[Any] = []
    for part in header.tasks:
        found += unrolled(part) if isinstance(part, group) and _is_plain(part, group) else [part]
    return found


def _checked(part: Any) -> Any:
    if isinstance(part, Task):
        return part.s()
    if not isinstance(part, PartialSignature | Canvas):
        raise WrongArguments(f"{part!r:.100} is no part of a canvas; give task.s(...), or a chain, group or chord")
    return part


def _name(part: Part[Any]) -> str:
    return part.task.name if isinstance(part, PartialSignature) else type(part).__name__


class CanvasRunner(FlowFunction):
    """The function that runs the canvases of a group; see :class:`emsworker.flows.canvas.task.CanvasTask`."""

    @abstractmethod
    def start_canvas(
        self, canvas: Canvas[Any], args: Sequence[Any], kwargs: Mapping[str, Any], **options: Any
    ) -> FlowHandle[Any]:
        """Start a canvas; see :meth:`Canvas.apply_async`."""

    @abstractmethod
    def signature_of(self, part: Any) -> Signature[Any]:
        """Return the call of a canvas, or of a call with callbacks, that another flow makes."""


def task_of(canvas: Any) -> CanvasRunner:
    """Return the task that runs a canvas: that of the group of its first call.

    Raises:
        WrongArguments: it calls nothing, or is no canvas.
    """
    if not isinstance(canvas, Signature | Canvas):
        raise WrongArguments(f"{canvas!r:.100} is no call of a task; give task.s(...)")
    first = next(first_calls(canvas), None)
    if first is None:
        raise WrongArguments(f"{canvas!r} calls no task, so there is nowhere to run it; nothing was started")
    app = cast("Ems", first.task.app)
    return cast("CanvasRunner", app.registry.route(first.task.topic, first.task.group).find(NAME))


def first_calls(part: Any) -> Iterator[PartialSignature[Any]]:
    """Yield the calls with which a part begins, and then those of a chain whose first part has none."""
    if isinstance(part, PartialSignature):
        yield part
    else:
        for one in part.tasks:
            yield from first_calls(one)
