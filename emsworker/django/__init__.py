"""Public name of the Django integration; see :mod:`emsworker.integrations.django`."""

from __future__ import annotations

from emsworker.integrations.django import EmsBackend, enqueue_many, get_app, options

__all__ = ["EmsBackend", "enqueue_many", "get_app", "options"]
