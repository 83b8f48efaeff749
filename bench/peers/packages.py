"""The Debian packages of the servers that peers need, for ``./dev`` to install."""

from __future__ import annotations

from collections.abc import Iterable

from bench.peers.servers import PostgreSQL, RabbitMQ
from bench.peers.systems import System
from emsworker.local import ServerMissing

_FINDERS = {"postgresql": PostgreSQL.find, "rabbitmq": RabbitMQ.find}
_PACKAGES = {"postgresql": PostgreSQL.package, "rabbitmq": RabbitMQ.package}


def missing(peers: Iterable[System]) -> list[str]:
    """Those that are not installed and that some of these peers need."""
    wanted = []
    for broker in sorted({peer.broker for peer in peers} & set(_FINDERS)):
        try:
            _FINDERS[broker]()
        except ServerMissing:
            wanted.append(_PACKAGES[broker])
    return wanted
