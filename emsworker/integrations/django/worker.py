"""The app that a worker of a Django project runs: ``-A emsworker.integrations.django.worker:ALIAS``.

``manage.py ems_worker`` gives that. An app is made when it is asked for: the project is set up, and the tasks of all
its apps are imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from emsworker.integrations.django.backend import get_backend
from emsworker.integrations.django.framework import task_backends


def __getattr__(alias: str) -> Any:
    """Return the app of a backend, with all tasks of the project."""
    if alias.startswith("__"):
        raise AttributeError(alias)
    import django
    from django.db import connections
    from django.utils.module_loading import autodiscover_modules

    django.setup()
    if alias not in task_backends.settings:
        raise AttributeError(alias)
    for database in connections.settings.values():
        # A connection that is kept between two runs may outlive the server; Django then looks before it uses it.
        database["CONN_HEALTH_CHECKS"] = True
    backend = get_backend(alias)
    autodiscover_modules("tasks")
    for module in backend.modules:
        import_module(module)
    backend.app.follow()
    return backend.app
