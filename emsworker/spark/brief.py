"""Errors of EMS in Spark, which copies a Python worker's whole traceback into its own exception."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from emsworker.extending.errors import EmsError

C = TypeVar("C")
log = logging.getLogger(__name__)


def brief_errors(kind: type[C]) -> type[C]:
    """Let every EmsError leave the public methods of a class without its frames and causes: only its text helps.

    The class is decorated, not its methods, so that a new method cannot be forgotten. The log has it all, at debug.
    """
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _generating(method) if inspect.isgeneratorfunction(method) else _calling(method))
    return kind


def _calling(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def brief(*args: Any, **given: Any) -> Any:
        try:
            return method(*args, **given)
        except EmsError as error:
            log.debug("%s", method.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return brief


def _generating(method: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    @functools.wraps(method)
    def brief(*args: Any, **given: Any) -> Iterator[Any]:
        try:
            yield from method(*args, **given)
        except EmsError as error:
            log.debug("%s", method.__qualname__, exc_info=True)
            raise error.with_traceback(None) from None

    return brief
