"""Arguments that a program gives kombu: numbers of a queue or a message, and names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp.exceptions import PreconditionFailed

from emsworker.extending.settings import shown

_LONGEST_MS = 100 * 365 * 86_400_000  # later times do not fit into the server's
_MOST_BYTES = 255  # of a name, as in AMQP
# The least and the most of each; RabbitMQ refuses a queue that expires at once, too.
_BOUNDS = {
    "x-expires": (1, _LONGEST_MS),
    "x-message-ttl": (0, _LONGEST_MS),
    "x-max-length": (0, (1 << 63) - 1),
    "x-max-priority": (0, 255),
    "x-delivery-limit": (0, (1 << 31) - 1),
    "expiration": (0, _LONGEST_MS),  # of a message
}


def number_of(arguments: Mapping[str, Any], name: str) -> int | None:
    """Return an argument as a whole number, or ``None`` if it is not given.

    Raises:
        PreconditionFailed: it is no number, or out of bounds.
    """
    value = arguments.get(name)
    if value is None:
        return None
    least, most = _BOUNDS[name]
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = -1
    if not least <= number <= most:
        raise PreconditionFailed(
            f"{name} is {shown(name, value)}; give a whole number from {least} to {most}", (50, 10)
        )
    return number


def seconds_of(arguments: Mapping[str, Any], name: str) -> float | None:
    """Return an argument in milliseconds as seconds, or ``None`` if it is not given.

    Raises:
        PreconditionFailed: it is no number, or out of bounds.
    """
    number = number_of(arguments, name)
    return None if number is None else number / 1000


def check_queue(name: str, arguments: Mapping[str, Any]) -> None:
    """Check the name and all arguments of a queue, before anything is created.

    Raises:
        PreconditionFailed: one is wrong.
    """
    check_names(queue=name)
    for argument in _BOUNDS:
        number_of(arguments, argument)


def check_names(**names: str) -> None:
    """Check names and keys, each by the word for what it names.

    Raises:
        PreconditionFailed: one has no UTF-8 form, or is too long.
    """
    for word, name in names.items():
        size = len(name.encode("utf-8", "surrogatepass"))
        text = f"{word.replace('_', ' ')} {shown(word, name)}"
        if size > _MOST_BYTES:
            raise PreconditionFailed(f"{text} has {size} bytes; give one of at most {_MOST_BYTES}", (50, 10))
        if not name.isascii() and any("\ud800" <= one <= "\udfff" for one in name):
            raise PreconditionFailed(f"{text} has no UTF-8 form; take out its lone surrogates", (50, 10))
