"""Public names of a package that are imported on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a module, which imports a public name from the module that has it.

    Args:
        module: its ``__name__``.
        homes: a module -> the names that it has, with blanks between. A name may also be that of a module in a package.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home = import_module(home_of[name])
        return getattr(home, name) if hasattr(home, name) else import_module(f"{home.__name__}.{name}")

    return find


__all__ = ["lazy_names"]
