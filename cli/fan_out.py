"""Running a command for each of several servers, and printing what it says as one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from emsworker.console.collecting import COLLECTED, Collected, Said
from emsworker.console.context_keys import SERVER
from emsworker.console.failures import CommandFailure, Errors, ItemFailures
from emsworker.console.output import print_json, print_record, print_rows


def for_each(context: click.Context, names: Sequence[str], run: Callable[[], Any]) -> None:
    """Run a command for each server, and print the lists and records of all.

    A server that fails leaves the others as they are; the exit code is the highest of all. If something is found on one
    server, that it is not on the others is no error.

    Args:
        run: runs the command; the context says for which server.
        names: of the servers.
    """
    from emsworker.console.wording import error_text
    from emsworker.core.errors import EmsError

    everything = context.meta[COLLECTED] = Collected()
    failures: list[tuple[str, EmsError]] = []
    items: list[tuple[str, Errors]] = []
    code, done = 0, 0
    for name in names:
        context.meta[SERVER] = everything.server = name
        try:
            run()
            done += 1
        except click.exceptions.Exit as end:
            code, done = max(code, end.exit_code), done + 1
        except ItemFailures as some:
            items.append((name, some.errors))
            done += 1
        except EmsError as error:
            failures.append((name, error))
    del context.meta[COLLECTED]
    _print(everything)
    lines = [
        f"server {name}: {error_text(error, context)}"
        for name, error in failures
        if not (done and _is_elsewhere(error))
    ]
    if len(failures) == len(names) and all(_is_elsewhere(error) for _, error in failures):
        raise failures[0][1]
    lines += _of_items(items, len(names))
    if lines:
        raise CommandFailure(lines)
    context.exit(code)


def _of_items(found: Sequence[tuple[str, Errors]], servers: int) -> Iterator[str]:
    """Yield the errors of items, and of those that are on no server one each."""
    missing = Counter(item for _, errors in found for item, error in errors.items() if _is_elsewhere(error))
    for name, errors in found:
        for item, error in errors.items():
            if not _is_elsewhere(error):
                yield f"server {name}: {error}"
            elif missing.pop(item, 0) == servers:
                yield str(error)


def _is_elsewhere(error: Exception) -> bool:
    from emsworker.core.errors import UnknownName

    return isinstance(error, UnknownName)


def _print(everything: Collected) -> None:
    if everything.values:
        print_json(everything.values)
    shown = [part for part in everything.parts if isinstance(part, Said) or part.rows] or everything.parts[:1]
    for number, part in enumerate(shown):
        if number:
            click.echo()
        if isinstance(part, Said):
            print_record(part.record, as_json=False)
        else:
            print_rows(part.rows, ["server", *part.columns], part.as_json, part.empty, spare=part.spare)
