"""The tables of a queue with one log row per message and group, and a connection to them."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import pymysql

TABLES = (
    "CREATE TABLE old_message (`offset` BIGINT UNSIGNED PRIMARY KEY, body LONGBLOB NOT NULL) ENGINE=InnoDB",
    "CREATE TABLE old_cursor (id INT PRIMARY KEY, next_offset BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB",
    "INSERT INTO old_cursor VALUES (1, 1)",
    "CREATE TABLE old_log (group_id INT NOT NULL, `offset` BIGINT UNSIGNED NOT NULL, client VARCHAR(64) NOT NULL, "
    "state ENUM('start', 'done') NOT NULL, started_at DATETIME(6) NOT NULL, ended_at DATETIME(6) NULL, "
    "PRIMARY KEY (group_id, `offset`), KEY state (state, group_id)) ENGINE=InnoDB",
)


def connect(*, autocommit: bool) -> pymysql.connections.Connection[Any]:
    """A connection to the database that the environment names."""
    url = urlsplit(os.environ["EMS_URL"])
    return pymysql.connect(
        host=url.hostname or "",
        port=url.port or 3306,
        user=url.username,
        password=url.password or "",
        database=url.path.lstrip("/"),
        charset="utf8mb4",
        autocommit=autocommit,
    )


def create() -> None:
    """Create the tables."""
    with connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in TABLES:
            cursor.execute(statement)
