"""Django: a backend of ``django.tasks`` over a stream in one of the project's own databases.

``emsworker.django`` is the name that projects use: in ``INSTALLED_APPS``, in ``TASKS``, and in imports.
"""

from __future__ import annotations

from emsworker.integrations.django.backend import EmsBackend, enqueue_many, get_app
from emsworker.integrations.django.declared import options

__all__ = ["EmsBackend", "enqueue_many", "get_app", "options"]
