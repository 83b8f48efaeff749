"""Celery on EMS: a transport of kombu, a result backend and a scheduler."""

from emsworker.extending.declaration import Extension

EXTENSION = Extension(
    "celery",
    __package__,
    rights="emsworker.integrations.celery.rights:RIGHTS",
    services="emsworker.integrations.celery.services:services",
    topics=("amqp:", "amqp-bus"),  # names.py
    checks="emsworker.integrations.celery.checks:checks",
)
