"""Celery on a stream: a transport for kombu, found by the URL ``ems+mysql://user:password@host:3306/database``.

Needs ``pip install 'emsworker[celery]'``. The public names are imported on first use, because kombu loads a module of
this package in the middle of its own imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emsworker.integrations.celery.scheduler import Scheduler as Scheduler
    from emsworker.integrations.celery.transaction import in_transaction as in_transaction

__all__ = ["Scheduler", "in_transaction"]

_MODULES = {"Scheduler": "scheduler", "in_transaction": "transaction"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
