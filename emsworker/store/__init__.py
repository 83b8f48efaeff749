"""The only place with SQL: one module and one ``.sql`` file per subject, over one kind of session.

The names below are the store's seam: what rooms above the broker, and extensions, need of the connection itself.
"""

from emsworker.store.engine.database import Database
from emsworker.store.engine.grants import Grants, bringing
from emsworker.store.engine.probe import check_room, has_privileges, may_insert, missing_privileges, with_tables
from emsworker.store.engine.replica import ReplicaDatabase, replica_lag
from emsworker.store.engine.schema import (
    check_server,
    check_version,
    create_database,
    current_version,
    drop_database,
    extension_versions,
    migrate,
    present_extensions,
    put_back,
    server_facts,
    server_now,
    server_run,
    stream_id,
)
from emsworker.store.engine.session import Session
from emsworker.store.engine.tables import has_tables

__all__ = [
    "Database",
    "Grants",
    "ReplicaDatabase",
    "Session",
    "bringing",
    "check_room",
    "check_server",
    "check_version",
    "create_database",
    "current_version",
    "drop_database",
    "extension_versions",
    "has_privileges",
    "has_tables",
    "may_insert",
    "migrate",
    "missing_privileges",
    "present_extensions",
    "put_back",
    "replica_lag",
    "server_facts",
    "server_now",
    "server_run",
    "stream_id",
    "with_tables",
]
