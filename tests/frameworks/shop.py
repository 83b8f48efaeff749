"""A Django project on PyMySQL in one file, served by gunicorn: ``tests.frameworks.shop:application``.

It is loaded before gunicorn forks its workers, and has sent something by then.
"""

import os
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

if pymysql.version_info < (2, 2, 1):  # what Django asks of mysqlclient; PyMySQL tells a version of that
    pymysql.version_info = (2, 2, 1, "final", 0)
pymysql.install_as_MySQLdb()

import django  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.http import HttpRequest, HttpResponse, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

from emsworker import Ems  # noqa: E402

_PLACE = urlsplit(os.environ["EMS_URL"])
settings.configure(
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="of a test",
    USE_TZ=True,
    LOGGING={
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["console"]},
    },
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.mysql",
            "NAME": _PLACE.path[1:],
            "USER": unquote(_PLACE.username or ""),
            "PASSWORD": unquote(_PLACE.password or ""),
            "HOST": _PLACE.hostname,
            "PORT": _PLACE.port,
            "CONN_MAX_AGE": 60,
        }
    },
)
django.setup()

app = Ems("shop")
app.send("started", os.getpid())


class _No(Exception):
    pass


def _order(number: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO orders (n) VALUES (%s)", [number])


def on_commit(request: HttpRequest, number: int) -> HttpResponse:
    """The message is sent after the commit."""
    told: list[Any] = []
    with transaction.atomic():
        _order(number)
        transaction.on_commit(lambda: told.append(app.send("on_commit", number)))
    return JsonResponse({"id": told[0].id, "process": os.getpid()})


def atomic(request: HttpRequest, number: int) -> HttpResponse:
    """The message is sent with the transaction, in a savepoint of it."""
    with transaction.atomic():
        _order(number)
        with transaction.atomic():
            receipt = app.send("atomic", number, transaction=connection)
    return JsonResponse({"id": receipt.id, "process": os.getpid()})


def rolled_back(request: HttpRequest, number: int) -> HttpResponse:
    """The message goes with its order."""
    try:
        with transaction.atomic():
            _order(number)
            app.send("atomic", number, transaction=connection)
            raise _No
    except _No:
        return JsonResponse({"process": os.getpid()})


urlpatterns = [path(f"{view.__name__}/<int:number>", view) for view in (on_commit, atomic, rolled_back)]
application = get_wsgi_application()
