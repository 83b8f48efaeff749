"""Connections to the database, statements, and checks of its tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from emsworker.store.engine import foreign as foreign
    from emsworker.store.engine.database import Database as Database
    from emsworker.store.engine.errors import translate as translate
    from emsworker.store.engine.replica import Lag as Lag
    from emsworker.store.engine.replica import ReplicaDatabase as ReplicaDatabase
    from emsworker.store.engine.replica import replica_lag as replica_lag
    from emsworker.store.engine.schema import check_extension as check_extension
    from emsworker.store.engine.schema import check_server as check_server
    from emsworker.store.engine.schema import check_version as check_version
    from emsworker.store.engine.schema import create_database as create_database
    from emsworker.store.engine.schema import current_version as current_version
    from emsworker.store.engine.schema import drop_database as drop_database
    from emsworker.store.engine.schema import latest_version as latest_version
    from emsworker.store.engine.schema import migrate as migrate
    from emsworker.store.engine.schema import present_extensions as present_extensions
    from emsworker.store.engine.schema import server_facts as server_facts
    from emsworker.store.engine.schema import server_now as server_now
    from emsworker.store.engine.schema import stream_id as stream_id
    from emsworker.store.engine.session import Packet as Packet
    from emsworker.store.engine.session import Session as Session
    from emsworker.store.engine.sql import Part as Part
    from emsworker.store.engine.sql import Sql as Sql
    from emsworker.store.engine.sql import Statements as Statements
    from emsworker.store.engine.sql import fill as fill
    from emsworker.store.engine.sql import fill_rows as fill_rows
    from emsworker.store.engine.sql import identifier as identifier
    from emsworker.store.engine.sql import insertion as insertion
    from emsworker.store.engine.sql import join as join
    from emsworker.store.engine.sql import literal as literal
    from emsworker.store.engine.sql import literals as literals
    from emsworker.store.engine.sql import message_blobs as message_blobs
else:  # a name that is not above is an error of types, too
    __getattr__ = lazy_names(
        __name__,
        {
            "emsworker.store.engine": "foreign",
            "emsworker.store.engine.database": "Database",
            "emsworker.store.engine.errors": "translate",
            "emsworker.store.engine.replica": "Lag ReplicaDatabase replica_lag",
            "emsworker.store.engine.schema": "check_extension check_server check_version create_database "
            "current_version drop_database latest_version migrate present_extensions server_facts server_now stream_id",
            "emsworker.store.engine.session": "Packet Session",
            "emsworker.store.engine.sql": "Part Sql Statements fill fill_rows identifier insertion join "
            "literal literals message_blobs",
        },
    )
