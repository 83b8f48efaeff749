"""A Django project with Celery, django-celery-beat and django-celery-results, as their documentation sets it up."""

import os

import pymysql

pymysql.install_as_MySQLdb()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.celery.shop.settings")

from tests.celery.shop.celery import app as celery_app  # noqa: E402 - the settings come first

__all__ = ["celery_app"]
