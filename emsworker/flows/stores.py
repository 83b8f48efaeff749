"""Finds the stores of flows that belong to an app's broker.

A flow stays in the stream in which it was started, also if its topic moves to another server: then its messages are
forwarded, and a worker there runs it in the stream that keeps it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

from emsworker.extending.apps import Ems, MysqlBroker
from emsworker.extending.database import check_extension
from emsworker.extending.errors import ConfigError, Problem, SchemaMissing, StoreUnavailable, WrongArguments
from emsworker.flows.memory import store_of
from emsworker.flows.port import FlowStore
from emsworker.flows.store.flow_store import MysqlFlowStore

_KEPT = "_ems_flow_store"


def store_for(app: Ems, topic: str) -> FlowStore:
    """Return the store in which flows are started that run on a topic.

    Raises:
        SchemaMissing: the database has no tables for flows.
    """
    return store_of(cast("Any", app.broker)) if app.broker.in_memory else _store_on(app.streams.kept_by(topic))


def stores_of(app: Ems, topic: str) -> Iterator[FlowStore]:
    """Yield the stores with flows that run on a topic: that of the server that keeps it, and those where it was before.

    Raises:
        SchemaMissing: the first one has no tables for flows.
    """
    yield store_for(app, topic)
    for name in app.broker.locate(topic)[-2::-1]:
        with suppress(SchemaMissing):  # no flow was started there
            yield _store_on(app.streams.server(name))


def store_with(app: Ems, topic: str, key: str) -> FlowStore:
    """Return the store that has a flow; that in which it would be started if none has."""
    first, *former = stores_of(app, topic)
    return next((store for store in former if store.find(key) is not None), first) if former else first


def store_named(app: Ems, stream_id: str) -> FlowStore:
    """Return the store of a stream, by the identity of that.

    Raises:
        ConfigError: the app does not know the server.
    """
    if app.broker.in_memory:
        return store_of(cast("Any", app.broker))
    away: StoreUnavailable | None = None
    for stream in (app.stream, *app.streams.servers.values()):
        try:
            if stream.stream_id == stream_id:
                return _store_on(stream)
        except StoreUnavailable as error:  # of another one, perhaps
            away = error
    if away is not None:
        raise away
    fix = f"none of its servers has stream {stream_id}, which keeps the flow; name the server with that stream"
    raise ConfigError([Problem("EMS_SERVERS", ", ".join(app.streams.servers), fix)])


def check_transaction(app: Ems, topic: str, store: FlowStore, transaction: Any) -> None:
    """Check that a caller's transaction is on the server of the flow.

    Raises:
        WrongArguments: it is not; nothing was written.
    """
    if transaction is None or not app.settings.servers or app.broker.in_memory:
        return
    here = app.broker.home_of(transaction)
    if _store_on(app.streams.server(here)) is not store:
        there = next(name for name, stream in app.streams.servers.items() if stream.stream_id == store.stream_id)
        raise WrongArguments(
            f"the transaction is on server {here!r}, and flows of topic {topic!r} are kept on {there!r}; nothing was "
            f"written: call it after the commit, or within app.transaction(server={there!r})"
        )


def _store_on(stream: MysqlBroker) -> FlowStore:
    store: FlowStore | None = vars(stream).get(_KEPT)
    if store is None:
        from emsworker.flows.extension import EXTENSION

        stream.database.call(lambda session: check_extension(session, EXTENSION))
        store = vars(stream)[_KEPT] = MysqlFlowStore(stream.database, stream)
    return store
