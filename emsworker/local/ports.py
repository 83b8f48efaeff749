"""Choice of free TCP ports on 127.0.0.1."""

import random
import socket

from emsworker.local.errors import ServerFailed

# Below the range from which the kernel takes the ports of outgoing connections: otherwise a client that reconnects
# to a stopped server could occupy its port, or even connect to itself.
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200

_reserved: list[socket.socket] = []


def is_free(port: int) -> bool:
    """Return whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Servers set it too, so connections in TIME_WAIT don't count as "in use".
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a random free port, which is reserved for as long as this process lives.

    A server often listens on it much later, or not at all for a while. So it stays bound, without listening: a
    server can still listen on it (with SO_REUSEADDR, which servers set), and no outgoing connection and no other
    call of this function gets it, in any process.

    Raises:
        ServerFailed: no free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = random.choice(_PORTS)
        if _reserve(port):
            return port
    raise ServerFailed("no free TCP port on 127.0.0.1")


def _reserve(port: int) -> bool:
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # Without SO_REUSEADDR, or it would also succeed where somebody else has reserved the port.
        reserved.bind(("127.0.0.1", port))
    except OSError:
        reserved.close()
        return False
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _reserved.append(reserved)
    return True
