"""Finds the store of flows that belongs to an app's broker."""

from __future__ import annotations

from typing import Any, cast

from emsworker.extending.apps import Ems
from emsworker.extending.database import check_extension
from emsworker.flows.memory import store_of
from emsworker.flows.port import FlowStore
from emsworker.flows.store import MysqlFlowStore

_KEPT = "_ems_flow_store"


def store_for(app: Ems, topic: str) -> FlowStore:
    """Return where flows are kept that run on a topic.

    Raises:
        SchemaMissing: the database has no tables for flows.
    """
    if app.broker.in_memory:
        return store_of(cast("Any", app.broker))
    stream = app.stream_of(topic)
    store: FlowStore | None = vars(stream).get(_KEPT)
    if store is None:
        from emsworker.flows.extension import EXTENSION

        stream.database.call(lambda session: check_extension(session, EXTENSION))
        store = vars(stream)[_KEPT] = MysqlFlowStore(stream.database, stream.outbox)
    return store
