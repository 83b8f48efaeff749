"""Choice of free TCP ports on 127.0.0.1."""

import random
import socket

from emsworker.local.errors import ServerFailed

# Below the range from which the kernel takes the ports of outgoing connections: otherwise a client that reconnects
# to a stopped server could occupy its port, or even connect to itself.
_PORTS = range(20_000, 32_000)
_ATTEMPTS = 200


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
    """Return a random free port.

    Raises:
        ServerFailed: no free port was found.
    """
    for _ in range(_ATTEMPTS):
        port = random.choice(_PORTS)
        if is_free(port):
            return port
    raise ServerFailed("no free TCP port on 127.0.0.1")
