"""What a version promises, as recorded items: public names, settings, commands, tables, metrics, log fields, hooks.

``python -m verification.surface`` compares them with the record, and ``--record`` writes that anew. An item that is
gone or has another form breaks programs that are there, and so does a new one that must be given; a new one that need
not be given breaks none.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import click
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

import emsworker
from emsworker.core.config import Settings
from emsworker.core.extension import extensions
from emsworker.core.model import Group, Topic
from emsworker.core.options import options_of
from emsworker.core.settings import settings_of
from emsworker.observe.metrics import Metrics
from emsworker.store.engine.grants import Grants
from emsworker.store.engine.tables import CORE, create_statements
from emsworker.tasks.middleware import Middleware

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "docs" / "reference" / "surface.json"
_PAGES = ("api", "api-admin", "api-extending", "api-reading")
_ENTRY = re.compile(r"^::: (\S+)\n(?:    options:\n      members: \[(.*)\]\n)?", re.MULTILINE)
_COLUMN = re.compile(r"^  `?([a-z]\w*)`? ([A-Z][^\n]*?),?$", re.MULTILINE)  # keys begin with upper-case letters
_OPTIONS = re.compile(r"Unpack\[(\w+)\]")
REQUIRED = "must be given"


def items() -> dict[str, str]:
    """Return every item with its form."""
    parts = (_names(), _settings(), _commands(), _tables(), _roles(), _metrics(), _log_fields(), _hooks())
    return dict(sorted(item for part in parts for item in part))


def breaks(recorded: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what would break programs that were written for what was recorded, a sentence each."""
    found = [f"{name} is gone; it was {form}" for name, form in recorded.items() if name not in now]
    found += [
        f"{name} was {form}, and is {now[name]}"
        for name, form in recorded.items()
        if name in now and now[name] != form and not (form.startswith(REQUIRED) and not now[name].startswith(REQUIRED))
    ]
    found += [
        f"{name} is new, and {form}"
        for name, form in now.items()
        if name not in recorded and form.startswith(REQUIRED) and _owner(name) in recorded
    ]
    return found


def _owner(name: str) -> str:
    """Return the item whose part this one is: a call, of its argument."""
    return name.rpartition(" ")[0]


def _names() -> Iterator[tuple[str, str]]:
    """Yield the names on the pages of the reference and those of the package, with what they take."""
    for name in emsworker.__all__:
        yield from _described(f"name: emsworker.{name}", getattr(emsworker, name), None)
    for page in _PAGES:
        for entry in _ENTRY.finditer((ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")):
            path, members = entry.groups()
            chosen = None if members is None else re.findall(r"\w+", members)
            yield from _described(f"name: {_public(path)}", resolve_name(path), chosen)


def _public(path: str) -> str:
    """Return the shortest path under which a name can be imported."""
    home, _, name = path.rpartition(".")
    thing, packages = resolve_name(path), home.split(".")
    for depth in range(1, len(packages)):
        package = ".".join(packages[:depth])
        if name in getattr(resolve_name(package), "__all__", ()) and resolve_name(f"{package}.{name}") is thing:
            return f"{package}.{name}"
    return path


def _described(name: str, thing: Any, members: list[str] | None) -> Iterator[tuple[str, str]]:
    if not inspect.isclass(thing):
        yield from _call(name, thing) if callable(thing) else [(name, "a value")]
        return
    if issubclass(thing, BaseException):
        yield name, f"an error, one of {', '.join(_own_bases(thing))}"
        return
    yield name, "a class"
    if issubclass(thing, enum.Enum):
        yield from ((f"{name}.{member.name}", repr(member.value)) for member in thing)
        return
    if dataclasses.is_dataclass(thing):
        yield from ((f"{name}.{field.name}", str(field.type)) for field in dataclasses.fields(thing))
    for member in members if members is not None else [one for one in dir(thing) if not one.startswith("_")]:
        found = inspect.getattr_static(thing, member, None)
        if isinstance(found, staticmethod | classmethod):
            found = found.__func__
        if inspect.isfunction(found):
            yield from _call(f"{name}.{member}", found)
        elif found is not None and not dataclasses.is_dataclass(thing):
            yield f"{name}.{member}", "an attribute"


def _own_bases(error: type[BaseException]) -> list[str]:
    return [base.__name__ for base in error.__bases__]


def _call(name: str, function: Any) -> Iterator[tuple[str, str]]:
    """Yield a function and its arguments: one that has a default need not be given."""
    yield name, "a coroutine" if inspect.iscoroutinefunction(function) else "a call"
    for argument in inspect.signature(function).parameters.values():
        if argument.name.startswith("_") or argument.name in ("self", "cls"):
            continue
        if (options := _OPTIONS.fullmatch(str(argument.annotation))) is not None:
            words = function.__globals__[options[1]]
            yield from ((f"{name} {word}", "by name") for word in words.__annotations__)
            continue
        is_open = argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
        must = argument.default is argument.empty and not is_open
        way = "by name" if argument.kind is argument.KEYWORD_ONLY else "any number" if is_open else "by place or name"
        yield f"{name} {argument.name}", f"{REQUIRED}, {way}" if must else way


def _settings() -> Iterator[tuple[str, str]]:
    for name, one in options_of(Settings).items():
        yield f"setting: {name}", f"{one.check.form}, {one.default!r}"
    for what, owner in (("topic", Topic), ("group", Group)):
        for name, setting in settings_of(owner).items():
            yield (
                f"setting of a {what}: {name}",
                f"{', '.join(setting.check.words) or setting.check.form}, {setting.default}",
            )


def _commands() -> Iterator[tuple[str, str]]:
    yield from _command(resolve_name("emsworker.cli.main:ems"), "command: ems")


def _command(command: click.Command, path: str) -> Iterator[tuple[str, str]]:
    yield path, "a command"
    for one in command.params:
        name = one.name if isinstance(one, click.Argument) else "/".join((*one.opts, *one.secondary_opts))
        many = ", repeated" if one.nargs == -1 or getattr(one, "multiple", False) else ""
        form = "flag" if getattr(one, "is_flag", False) else one.type.name
        yield f"{path} {name}", (f"{REQUIRED}, " if one.required else "") + form + many
        if isinstance(one.type, click.Choice):
            yield from ((f"{path} {name}={choice}", "a choice") for choice in one.type.choices)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _command(below, f"{path} {name}")


def _tables() -> Iterator[tuple[str, str]]:
    for package in (CORE, *(one.package for one in extensions().values())):
        for table, statement in create_statements(package).items():
            yield from ((f"table: {table}.{column}", form) for column, form in _COLUMN.findall(statement))


def _roles() -> Iterator[tuple[str, str]]:
    grants = Grants(extensions().values())
    yield from ((f"role: {role}", "a role") for role in grants.roles)
    yield from ((f"allowance: {one}", "an allowance") for one in grants.allowances)


def _metrics() -> Iterator[tuple[str, str]]:
    for metric in vars(Metrics(registry=CollectorRegistry())).values():
        if isinstance(metric, MetricWrapperBase):
            (described,) = metric.describe()
            yield f"metric: {described.name}", f"{described.type} by {', '.join(metric._labelnames) or 'nothing'}"


def _log_fields() -> Iterator[tuple[str, str]]:
    """Yield the fields of a line in JSON, from the table of the page about logs."""
    page = (ROOT / "docs" / "how-to" / "logs.md").read_text(encoding="utf-8")
    _, _, table = page.partition("| field | meaning |\n| --- | --- |\n")
    for row in table.partition("\n\n")[0].splitlines():
        names = row.split(" | ")[0]
        yield from ((f"log field: {name}", "a field") for name in re.findall(r"`(\w+)`", names))


def _hooks() -> Iterator[tuple[str, str]]:
    for name, hook in vars(Middleware).items():
        if inspect.isfunction(hook):
            yield from _call(f"hook: {name}", hook)


def recorded_items() -> dict[str, str]:
    """Return what was recorded; nothing, if that was of an earlier major version."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    is_past = _major(record["version"]) < _major(emsworker.__version__)
    return {} if is_past else record["items"]


def _major(version: str) -> int:
    return int(version.split(".")[0])


def main() -> int:
    """Compare, or record."""
    now = items()
    if "--record" in sys.argv[1:]:
        record = {"version": emsworker.__version__, "items": now}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{len(now)} items in {RECORD.relative_to(ROOT)}")
        return 0
    recorded = recorded_items()
    found = breaks(recorded, now)
    print("\n".join(found))
    print(f"{len(found)} breaks; {len(now.keys() - recorded.keys())} items are new", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
