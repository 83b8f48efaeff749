"""EMS: Celery-style workers over a durable message stream in MySQL.

The public names are imported on first use, so that ``import emsworker`` (and with it ``ems --help``) stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from emsworker.app import Ems as Ems
    from emsworker.core.config import Settings as Settings
    from emsworker.core.errors import BatchFailed as BatchFailed
    from emsworker.core.errors import EmsError as EmsError
    from emsworker.core.errors import Ignore as Ignore
    from emsworker.core.errors import Reject as Reject
    from emsworker.core.errors import ResultTimeout as ResultTimeout
    from emsworker.core.errors import Retry as Retry
    from emsworker.core.errors import RunEnded as RunEnded
    from emsworker.core.errors import SoftTimeLimitExceeded as SoftTimeLimitExceeded
    from emsworker.core.errors import TaskFailed as TaskFailed
    from emsworker.core.filters import Filter as Filter
    from emsworker.core.model import Message as Message
    from emsworker.core.model import Receipt as Receipt
    from emsworker.declaring.task import Outgoing as Outgoing
    from emsworker.guard import once as once
    from emsworker.middleware import Middleware as Middleware

__version__ = "0.1.0"

_HOME = {
    "Ems": "emsworker.app",
    "Settings": "emsworker.core.config",
    "BatchFailed": "emsworker.core.errors",
    "EmsError": "emsworker.core.errors",
    "Ignore": "emsworker.core.errors",
    "Reject": "emsworker.core.errors",
    "ResultTimeout": "emsworker.core.errors",
    "Retry": "emsworker.core.errors",
    "RunEnded": "emsworker.core.errors",
    "SoftTimeLimitExceeded": "emsworker.core.errors",
    "TaskFailed": "emsworker.core.errors",
    "Filter": "emsworker.core.filters",
    "Message": "emsworker.core.model",
    "Receipt": "emsworker.core.model",
    "Middleware": "emsworker.middleware",
    "once": "emsworker.guard",
    "Outgoing": "emsworker.declaring.task",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module 'emsworker' has no attribute {name!r}") from None
    return getattr(import_module(home), name)
