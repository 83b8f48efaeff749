"""The raw limit of a confirmed call: kombu with the least that keeps a message, a row of one table, by PyMySQL."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

import pymysql
from kombu.transport import memory
from kombu.utils.json import dumps

from emsworker.core.url import DatabaseUrl

DATABASE = "BENCH_DATABASE"
"""The environment variable with the address of the server."""

_CREATE = """CREATE DATABASE IF NOT EXISTS bare;
CREATE TABLE IF NOT EXISTS bare.message (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, body LONGBLOB)"""
_INSERT = "INSERT INTO bare.message (body) VALUES (_binary %s)"


class Channel(memory.Channel):
    """Puts each message into the table; there is one queue, and nobody reads it."""

    @cached_property
    def _cursor(self) -> pymysql.cursors.Cursor:
        url = DatabaseUrl.parse(os.environ[DATABASE])
        server = pymysql.connect(host=url.host, port=url.port, user=url.user, password=url.password, autocommit=True)
        cursor = server.cursor()
        for statement in _CREATE.split(";"):
            cursor.execute(statement)
        return cursor

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._cursor.execute(_INSERT, (dumps(message),))


class Transport(memory.Transport):
    """In the place of a broker."""

    Channel = Channel
    driver_type = "bare"
