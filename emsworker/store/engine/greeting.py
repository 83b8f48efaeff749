"""The first of several connections to one address on which a server greets.

A router behind the address may lead a connection to a server that is frozen: its system accepts, and nobody speaks. A
further connection, begun after a short pause while the first still waits, most likely leads elsewhere. The idea is that
of RFC 8305, "Happy Eyeballs"; that a server speaks first is MySQL's protocol.
"""

from __future__ import annotations

import selectors
import socket

from emsworker.core.process.clock import ticks

_GROWTH = 1.5  # of the pauses: a server that is merely slow is not asked more and more


def first_to_greet(address: tuple[str, int], timeout_s: float, pause_s: float) -> socket.socket:
    """Connect again and again until a server has begun to speak, and close the connections that are still silent.

    Args:
        address: host and port.
        timeout_s: seconds for all of it.
        pause_s: seconds without a greeting after which a second connection is opened; later pauses are longer.

    Raises:
        OSError: nothing can be reached there, or nobody has greeted in time (:class:`TimeoutError`).
    """
    until = ticks() + timeout_s
    silent: set[socket.socket] = set()
    # Not select.poll, which eventlet takes away, and which no Windows has.
    with selectors.DefaultSelector() as speaking:
        try:
            while (left_s := until - ticks()) > 0:
                connection = socket.create_connection(address, left_s)
                silent.add(connection)
                speaking.register(connection, selectors.EVENT_READ, connection)
                for key, _ in speaking.select(max(0.0, min(pause_s, until - ticks()))):
                    first: socket.socket = key.data
                    silent.remove(first)
                    first.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    first.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                    return first
                pause_s *= _GROWTH
            raise TimeoutError("timed out")
        finally:
            for connection in silent:
                connection.close()
