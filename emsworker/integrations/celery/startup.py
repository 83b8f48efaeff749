"""The start of a worker of Celery: a wrong address ends it with one line, before it takes a task.

Celery has no hook that is sure to come after this package is loaded. A worker makes its backend for the banner that it
prints, or else with the connection to its broker.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

from emsworker.extending.errors import AccessDenied, ConfigError, SchemaMissing, TlsError
from emsworker.extending.processes import name_url
from emsworker.integrations.celery.refusals import in_task
from emsworker.integrations.celery.url import StreamUrl

log = logging.getLogger(__name__)

_FATAL = (ConfigError, AccessDenied, TlsError, SchemaMissing)  # what no later try would change
_started: list[bool] = []  # once this process, or the worker that it was forked from, has been connected


def starting_worker() -> Any:
    """Return the application of the worker that starts in this thread; ``None`` in every other program, and later."""
    is_main = threading.current_thread() is threading.main_thread()
    if _started or not is_main or "celery.apps.worker" not in sys.modules or in_task():
        return None
    from billiard.process import current_process
    from celery import current_app

    app = current_app._get_current_object()
    return app if app.loader.worker_initialized and current_process().name == "MainProcess" else None


@contextlib.contextmanager
def ends_worker(setting: str) -> Iterator[None]:
    """End a worker that starts if what it does here is refused, instead of a traceback and of losing results later.

    Args:
        setting: of Celery, whose address is used.

    Raises:
        SystemExit: the worker cannot work; one line in its log says why.
    """
    try:
        yield
    except _FATAL as error:
        if starting_worker() is None:
            raise
        text = str(error)
        log.critical("the worker cannot start: %s", text if setting in text else f"{setting}: {text}")
        raise SystemExit(1) from None


def broker_connected() -> None:
    """Note that a worker has its broker; its backend is made now, if no banner has done it, and checks itself."""
    if (app := starting_worker()) is not None:
        _ = app.backend
        _started.append(True)


def name_broker(app: Any) -> None:
    """Give the address of an application's broker its name in errors, before a backend with the same one is refused."""
    with app.connection_for_read() as connection, contextlib.suppress(ValueError):
        if connection.transport.driver_type == "ems":
            name_url("broker_url", StreamUrl.of_connection(connection).database)
