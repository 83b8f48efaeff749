"""Handlers: functions that are called with messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import iscoroutinefunction
from typing import Any

from emsworker.core.errors import ConfigError, Problem
from emsworker.core.model import Message
from emsworker.tasks.options import HandlerOptions


class Handler:
    """A function that is called with messages."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        self.function = function
        self.name = name
        self.options = options
        self.is_async = iscoroutinefunction(function)
        if self.is_async and (options.transactional or options.batch):
            fix = "an async def handler has neither transactional nor batch; leave out async, or use concurrency"
            raise ConfigError([Problem("task", name, fix)])

    @property
    def together(self) -> int:
        """The number of neighbouring messages that are run together; 0 for one by one."""
        return self.options.concurrency if self.is_async else self.options.batch

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run it for one message; ``transaction`` is given to transactional handlers only."""
        raise NotImplementedError

    def dump_result(self, value: Any) -> Any:
        """Return what it has returned, as it is stored.

        Raises:
            EncodeError: it is not what the handler's annotation says.
        """
        return value

    def call_batch(self, messages: Sequence[Message], transaction: Any = None) -> Any:
        """Run it for several messages at once."""
        first = () if transaction is None else (transaction,)
        return self.function(*first, messages)


class Subscription(Handler):
    """A handler for every message of a topic, in a group of its own: ``function(message)``."""

    def __init__(self, function: Callable[..., Any], name: str, options: HandlerOptions) -> None:
        super().__init__(function, name, options)
        if options.priority is not None:
            fix = "a subscription sends nothing; give the priority when you send"
            raise ConfigError([Problem("priority", str(options.priority), fix)])
        if options.typed:
            raise ConfigError([Problem("typed", "True", "a subscription gets messages, whose bodies are plain JSON")])

    def call(self, message: Message, transaction: Any = None) -> Any:
        """Run it for one message."""
        if transaction is None:
            return self.function(message)
        return self.function(transaction, message)


def check_function(what: str, function: Any) -> None:
    """Check that a decorator was put on a function.

    Raises:
        ConfigError: it was not.
    """
    if isinstance(function, Handler):
        fix = "it is declared already; declare the function itself, under another name"
        raise ConfigError([Problem(what, function.name, fix)])
    if not callable(function):
        raise ConfigError(
            [Problem(what, repr(function), f"@app.{what} is put on a function; a name is given as name=")]
        )


def full_name(function: Any) -> str:
    """Return the default name of a function; that of a callable object is its class's."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}".replace("<locals>.", "")
