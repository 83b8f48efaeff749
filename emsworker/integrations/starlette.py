"""FastAPI and Starlette: the app's connections are opened and closed with the web application.

Needs ``pip install 'emsworker[fastapi]'``, or ``'emsworker[starlette]'``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING

from emsworker.extending.apps import Ems
from emsworker.extending.declaration import require
from emsworker.extending.errors import EmsError

require("starlette", __name__)

from starlette.requests import HTTPConnection  # noqa: E402 - FastAPI looks for it here, by the annotation of ems_of

if TYPE_CHECKING:
    from starlette.applications import Starlette


def lifespan(ems: Ems, *, connect: bool = True) -> Callable[[Starlette], AbstractAsyncContextManager[None]]:
    """Return a lifespan for ``FastAPI(lifespan=...)`` or ``Starlette(lifespan=...)``.

    It connects when the application starts, so that a wrong address or a missing schema is found then, and the first
    request is as fast as any. When the application stops, it waits for sends that have begun and closes the
    connections. An application with a lifespan of its own enters this one there: ``async with lifespan(ems)(app):``.

    Args:
        ems: the app that the web application sends with.
        connect: false: start without the database, and connect at the first send.

    Raises:
        SchemaMissing, AccessDenied, StoreUnavailable: when the application starts.
    """

    @asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        app.state.ems = ems
        try:
            if connect:
                await ems.pool.run(ems.broker.prepare)
            yield
        finally:
            await ems.aclose()

    return run


def ems_of(connection: HTTPConnection) -> Ems:
    """Return the app of a request's application; for FastAPI: ``ems: Annotated[Ems, Depends(ems_of)]``.

    Raises:
        EmsError: the application was made without :func:`lifespan`.
    """
    ems = getattr(connection.app.state, "ems", None)
    if not isinstance(ems, Ems):
        raise EmsError("the web application has no Ems; make it with lifespan=lifespan(ems)")
    return ems
