"""A small TCP proxy before a database server that cuts the connection at a chosen moment."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Refusal:
    """An error of the server's, instead of its answer."""

    number: int
    text: str
    state: str = "HY000"

    def packet(self) -> bytes:
        """It as the first packet of an answer."""
        body = b"\xff" + self.number.to_bytes(2, "little") + b"#" + self.state.encode() + self.text.encode()
        return len(body).to_bytes(3, "little") + b"\x01" + body


class Cut(Enum):
    """When the connection is cut, once armed."""

    BEFORE = "the server never gets the packet"
    AFTER = "the server gets it and answers, the client never hears"


class Proxy:
    """Passes bytes on; when armed, cuts the connection that sends a packet with ``marker`` in it.

    Args:
        host, port: the server.
        idle_s: cuts connections on which nothing was sent for so long; ``None``: none.
    """

    def __init__(self, host: str, port: int, idle_s: float | None = None) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._armed: tuple[bytes, Cut, Refusal | None, bool, int] | None = None
        self._is_shut = threading.Event()
        self._open: list[socket.socket] = []
        self.mute = 0  # so many of the next connections are accepted, and nobody answers, as before a frozen server
        self._refusals: dict[socket.socket, Refusal] = {}
        self._heard: dict[tuple[socket.socket, socket.socket], float] = {}
        self.cuts = 0
        if idle_s is not None:
            threading.Thread(target=self._cut_idle, args=(idle_s,), daemon=True).start()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(
        self, marker: bytes, cut: Cut, refusal: Refusal | None = None, *, is_last: bool = False, passing: int = 0
    ) -> None:
        """Cut the next connection that sends ``marker``; once.

        Args:
            marker: what the packet holds; nothing: any packet.
            cut: when.
            refusal: what the client gets; if the server has not got the packet, the connection stays as it is.
            is_last: all connections are cut with it, and new ones refused until :meth:`let_through`: the server sees
                what it sees when the client dies.
            passing: packets with the marker that get through before.
        """
        self._armed = (marker, cut, refusal, is_last, passing)

    def wait_shut(self, timeout_s: float) -> bool:
        """Wait until the last packet was sent; return whether it was in time."""
        return self._is_shut.wait(timeout_s)

    def let_through(self) -> None:
        """Accept connections again."""
        self._is_shut.clear()

    def disarm(self) -> None:
        """Cut nothing."""
        self._armed = None

    @property
    def armed(self) -> bool:
        """True if it has yet to cut."""
        return self._armed is not None

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mute:
                self.mute -= 1
                self._open.append(client)
                continue
            server = socket.create_connection(self._target)
            self._open += [client, server]
            if self._is_shut.is_set():
                _shut(client, server)
                continue
            self._heard[client, server] = time.monotonic()
            deaf = threading.Event()
            threading.Thread(target=self._upstream, args=(client, server, deaf), daemon=True).start()
            threading.Thread(target=self._downstream, args=(server, client, deaf), daemon=True).start()

    def _cut_idle(self, idle_s: float) -> None:
        while self._listener.fileno() >= 0:
            for pair, heard in list(self._heard.items()):
                if time.monotonic() - heard > idle_s:
                    del self._heard[pair]
                    self.cuts += 1
                    _shut(*pair)
            time.sleep(idle_s / 20)

    def _upstream(self, client: socket.socket, server: socket.socket, deaf: threading.Event) -> None:
        try:
            while data := client.recv(_CHUNK):
                self._hear(client, server)
                armed = self._armed
                if armed is not None and armed[0] in data and armed[-1]:
                    self._armed = (*armed[:-1], armed[-1] - 1)
                elif armed is not None and armed[0] in data:
                    _, cut, refusal, is_last, _ = armed
                    self._armed = None
                    self.cuts += 1
                    if is_last:
                        self._is_shut.set()
                        _shut(*(one for one in self._open if one not in (client, server)))
                    if cut is Cut.BEFORE:
                        if refusal is None:
                            break
                        client.sendall(refusal.packet())
                        continue
                    if refusal is not None:
                        self._refusals[server] = refusal
                    deaf.set()
                server.sendall(data)
        except OSError:
            pass
        finally:
            if not deaf.is_set():
                _shut(client, server)

    def _hear(self, client: socket.socket, server: socket.socket) -> None:
        if (client, server) in self._heard:  # it has not been cut meanwhile
            self._heard[client, server] = time.monotonic()

    def _downstream(self, server: socket.socket, client: socket.socket, deaf: threading.Event) -> None:
        try:
            client.sendall(_without_tls(server.recv(_CHUNK)))
            while data := server.recv(_CHUNK):
                self._hear(client, server)
                if deaf.is_set():
                    if (refusal := self._refusals.pop(server, None)) is not None:
                        client.sendall(refusal.packet())
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


def _without_tls(greeting: bytes) -> bytes:
    """The server's greeting without the offer of TLS, so that packets can be read."""
    flags = greeting.index(0, 5) + 1 + 4 + 8 + 1  # after the version: thread id, challenge, filler
    return greeting[: flags + 1] + bytes([greeting[flags + 1] & ~0x08]) + greeting[flags + 2 :]


def _shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):  # it was shut already
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@contextmanager
def proxied(url: str, idle_s: float | None = None) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server of ``url``, and the URL by which it is reached."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port, idle_s)
    try:
        yield proxy, re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", url)
    finally:
        proxy.close()
