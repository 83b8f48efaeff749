"""A small TCP proxy before a database server that cuts the connection at a chosen moment."""

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from urllib.parse import urlsplit

_CHUNK = 1 << 16


class Cut(Enum):
    """When the connection is cut, once armed."""

    BEFORE = "the server never gets the packet"
    AFTER = "the server gets it and answers, the client never hears"


class Proxy:
    """Passes bytes on; when armed, cuts the connection that sends a packet with ``marker`` in it.

    Args:
        host, port: the server.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: tuple[bytes, Cut] | None = None
        self._open: list[socket.socket] = []
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, marker: bytes, cut: Cut) -> None:
        """Cut the next connection that sends ``marker``; once."""
        self._armed = (marker, cut)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._open += [client, server]
            deaf = threading.Event()
            threading.Thread(target=self._upstream, args=(client, server, deaf), daemon=True).start()
            threading.Thread(target=self._downstream, args=(server, client, deaf), daemon=True).start()

    def _upstream(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        try:
            while data := client.recv(_CHUNK):
                if self._armed is not None and self._armed[0] in data:
                    cut, self._armed = self._armed[1], None
                    self.cuts += 1
                    if cut is Cut.BEFORE:
                        break
                    deaf.set()
                server.sendall(data)
        except OSError:
            pass
        finally:
            if not deaf.is_set():
                _shut(client, server)

    def _downstream(self, server: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        try:
            while data := server.recv(_CHUNK):
                if deaf.is_set():
                    break
                client.sendall(data)
        except OSError:
            pass
        finally:
            _shut(client, server)

    def close(self) -> None:
        """Cut everything."""
        self._listener.close()
        _shut(*self._open)


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):  # it was shut already
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def proxied(url: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server of ``url``, and the URL by which it is reached."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port)
    try:
        yield proxy, re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", url)
    finally:
        proxy.close()
