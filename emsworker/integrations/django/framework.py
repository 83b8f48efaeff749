"""Django's task framework: ``django.tasks``, or the package django-tasks before Django 6.0."""

from __future__ import annotations

from importlib.util import find_spec

from emsworker.extending.declaration import hint_if_missing

if hint := hint_if_missing("django"):
    raise ModuleNotFoundError(f"emsworker.django: {hint}", name="django")

import django

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    if find_spec("django_tasks") is None:
        text = f"Django {django.get_version()} has no tasks of its own; run: pip install 'django-tasks>=0.12'"
        raise ModuleNotFoundError(text, name="django_tasks")
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

__all__ = [
    "BaseTaskBackend",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
