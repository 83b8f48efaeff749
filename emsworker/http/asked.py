"""A request that was checked, and what an operation has for answering it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from emsworker.extending.apps import Ems
from emsworker.http.pulls import GroupPulls
from emsworker.http.tokens import HttpToken
from emsworker.web.events import EventStream

T = TypeVar("T")


@dataclass(frozen=True)
class CheckedRequest:
    """A request of an operation.

    Args:
        token: of its client.
        path, query: its parameters.
        body: its JSON.
        last_event_id: the last event that the client has had.
        wait_until_gone: waits until the client has gone.
    """

    token: HttpToken
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    last_event_id: str
    wait_until_gone: Callable[[], Awaitable[None]]


class HttpServices(Protocol):
    """The parts of a site that operations use; see :class:`emsworker.http.site.HttpSite`.

    Attributes:
        app: the app by which messages are sent.
        pulls: the groups that clients pull from.
        lease_s: seconds that a message may be in hand if the client does not say.
    """

    app: Ems
    pulls: GroupPulls
    lease_s: float

    async def call(self, call: Callable[[], T]) -> T:
        """Run a call that blocks on one of a few threads."""
        ...

    def tell(self, text: str, *values: object) -> None:
        """Log what a client has changed."""
        ...

    def stream(self, stream: EventStream) -> EventStream:
        """Let a stream of events go on for a minute."""
        ...
