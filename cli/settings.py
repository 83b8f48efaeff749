"""Options and records of the settings of topics and groups, made from their declarations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from emsworker.console.options import DURATION, read_duration, together
from emsworker.core.options import Option, options_of
from emsworker.core.settings import Setting, settings_of

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

if_missing_option = click.option("--if-missing", is_flag=True, help="Do nothing if it exists already.")


def creation_options(owner: type, *, defaults: bool = True) -> Callable[[F], F]:
    """Return the options with which a topic or a group is created.

    Args:
        owner: ``Topic`` or ``Group``.
        defaults: those of the declaration; without them, an option that is not given is ``None``.
    """
    chosen = {name: one for name, one in settings_of(owner).items() if one.created}
    return together(*[_option(name, one, changing=not defaults) for name, one in chosen.items() if one.switch != ""])


def change_options(owner: type) -> Callable[[F], F]:
    """Return the options with which a topic or a group is changed; one that is not given is ``None``."""
    chosen = {name: one for name, one in settings_of(owner).items() if one.changed}
    return together(*[_option(name, one, changing=True) for name, one in chosen.items() if one.switch != ""])


def _option(name: str, one: Setting, *, changing: bool) -> Callable[[F], F]:
    switch = f"--{name.removesuffix('_s').replace('_', '-')}"
    if one.check.form == "flag" and changing:
        return click.option(
            one.switch or f"{switch}/--no-{switch[2:]}", name, multiple=True, callback=_one_way, help=_sentence(one)
        )
    more = _FORMS[one.check.form](one)
    if not changing:
        default = str(one.default) if one.check.words else one.default
        more |= {"default": default, "show_default": one.default is not None and one.check.form != "flag"}
    return click.option(one.switch or switch, name, help=_sentence(one), **more)


def _one_way(ctx: click.Context, param: click.Parameter, given: tuple[bool, ...]) -> bool | None:
    """Return what the last of a flag's two switches says; ``None`` if none is given."""
    if len(set(given)) > 1:
        raise click.UsageError(f"Give either {' or '.join([*param.opts, *param.secondary_opts])}.")
    return given[-1] if given else None


_FORMS: Mapping[str, Callable[[Option], dict[str, Any]]] = {
    "text": lambda one: {},
    "whole": lambda one: {"type": int},
    "seconds": lambda one: {"metavar": "DURATION", "callback": read_duration},
    "flag": lambda one: {"is_flag": True},
    "choice": lambda one: {"type": click.Choice(one.check.words)},
}


def override_option(name: str, *short: str, metavar: str | None = None) -> Callable[[F], F]:
    """Return an option that overrides a setting of the app, a whole number."""
    from emsworker.core.config import Settings

    one = options_of(Settings)[name]

    def check(ctx: click.Context, param: click.Parameter, value: int | None) -> int | None:
        for problem in [] if value is None else one.problems(name, value):
            raise click.BadParameter(f"{problem.fix}.")
        return value

    text = f"{_sentence(one)} By default that of the app, {one.default} unless it is set."
    return click.option(*short, f"--{name.replace('_', '-')}", type=int, metavar=metavar, callback=check, help=text)


def _sentence(one: Option) -> str:
    text = f"{one.help[0].upper()}{one.help[1:]}"
    return f"{text}: {DURATION}." if one.check.form == "seconds" else f"{text}."


def create_or_get(create: Callable[[], T], get: Callable[[], T], if_missing: bool) -> T:
    """Return what ``create`` makes, or, with ``--if-missing``, what exists already."""
    from emsworker.core.errors import AlreadyExists

    try:
        return create()
    except AlreadyExists:
        if not if_missing:
            raise
        return get()


def record(thing: Any) -> dict[str, Any]:
    """Return the settings of a topic or a group by name."""
    return {name: getattr(thing, name) for name in settings_of(type(thing))}


def listed(owner: type) -> list[str]:
    """Return the names of the settings that lists show."""
    return [name for name, one in settings_of(owner).items() if one.listed]
