"""A Celery application beside it, with the same table of effects."""

from __future__ import annotations

import os

import pymysql
from celery import Celery

from emsworker.core.url import DatabaseUrl

URL = os.environ["EMS_URL"]
app = Celery("upgrade", broker=f"ems+{URL}", backend=f"ems+{URL}")
app.conf.task_acks_late = True


@app.task
def deliver(n: int) -> int:
    """Add a row."""
    url = DatabaseUrl.parse(URL)
    where = {"host": url.host, "port": url.port, "user": url.user, "password": url.password, "database": url.database}
    with pymysql.connect(**where, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect (what, n) VALUES ('deliver', %s)", (n,))
    return n
