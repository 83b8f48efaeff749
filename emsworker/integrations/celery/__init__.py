"""Celery on a stream: a transport for kombu, found by the URL ``ems+mysql://user:password@host:3306/database``.

Needs ``pip install 'emsworker[celery]'``. The public names are imported on first use, because kombu loads a module of
this package in the middle of its own imports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.integrations.celery.scheduler import Scheduler as Scheduler
    from emsworker.integrations.celery.transaction import in_transaction as in_transaction

__all__ = ["Scheduler", "in_transaction"]

__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.integrations.celery.scheduler": "Scheduler",
        "emsworker.integrations.celery.transaction": "in_transaction",
    },
)
