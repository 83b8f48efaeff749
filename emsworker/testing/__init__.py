"""In-memory app for users' own tests: no server, the same API, the worker's own rules.

The names are imported on first use: every run of pytest imports this package, for its plugin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emsworker.testing.app import DeadCall as DeadCall
    from emsworker.testing.app import TestApp as TestApp

__all__ = ["DeadCall", "TestApp"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'emsworker.testing' has no attribute {name!r}")
    from emsworker.testing import app

    return getattr(app, name)
