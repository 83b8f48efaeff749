"""The type of ``@app.flow(...)``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from emsworker.flows.flow import AsyncFlow, Flow
from emsworker.flows.task import FlowTask

P = ParamSpec("P")
R = TypeVar("R")


class FlowDecorator(Protocol):
    """Declares the function that it is put on."""

    @overload
    def __call__(self, function: Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]], /) -> FlowTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Flow, P], R], /) -> FlowTask[P, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Return the flow."""
        ...
