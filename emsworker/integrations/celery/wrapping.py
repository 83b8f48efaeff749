"""Wraps methods of Celery and Flower, which have no hooks for what a stream adds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from emsworker.integrations.celery.failures import note_failure
from emsworker.integrations.celery.flower import broker_of
from emsworker.integrations.celery.stats import info_without_secrets

# Modules, classes and methods, and what is called with the method before the arguments of each call.
_METHODS: tuple[tuple[str, str, str, Callable[..., Any]], ...] = (
    ("celery.worker.request", "Request", "on_failure", note_failure),
    ("celery.worker.consumer.connection", "Connection", "info", info_without_secrets),
    ("flower.utils.broker", "Broker", "__new__", broker_of),
)


def wrap_methods() -> None:
    """Wrap the methods whose modules this process has loaded, each once: workers have Celery's, Flower its own."""
    for module, owner, name, around in _METHODS:
        cls = getattr(sys.modules.get(module), owner, None)
        if cls is not None and not hasattr(method := getattr(cls, name), "__wrapped__"):
            setattr(cls, name, _wrapped(method, around))


def _wrapped(method: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    return wraps(method)(lambda *args, **kwargs: around(method, *args, **kwargs))
