"""A small TCP proxy between clients and a server, in which the network breaks."""

import contextlib
import socket
import struct
import threading
import time
from urllib.parse import urlsplit

_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)


class Network:
    """Passes bytes on, as long as it is whole.

    Args:
        url: of the server.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port: int = self._listener.getsockname()[1]
        self.url = url.replace(f":{parts.port}", f":{port}")
        self._mutex = threading.Lock()
        self._open: set[socket.socket] = set()
        self._silent: set[socket.socket] = set()
        self._cut = False
        self.delay_s = 0.0
        self._passing = threading.Event()
        self._passing.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        self._passing.wait()
        try:
            if self._cut:
                raise ConnectionRefusedError
            server = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        for one in (client, server):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._mutex:
            self._open |= {client, server}
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pass_on, args=(source, target), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                self._passing.wait()
                if source in self._silent:
                    continue  # it went into nothing
                if self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
        if source not in self._silent:
            self._close([source, target], reset=False)

    def _close(self, sockets: list[socket.socket], *, reset: bool) -> None:
        with self._mutex:
            mine = [one for one in sockets if one in self._open]
            self._open -= set(mine)
        for one in mine:
            with contextlib.suppress(OSError):
                if reset:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # close() sends RST
                # It wakes the thread that reads, which close() does not, and of the two only RDWR sends FIN.
                one.shutdown(socket.SHUT_RD if reset else socket.SHUT_RDWR)
            one.close()

    def cut(self) -> None:
        """End every connection and refuse others, until :meth:`heal`."""
        self._cut = True
        self.reset()

    def reset(self) -> None:
        """Reset every connection; the next ones are good."""
        with self._mutex:
            every = list(self._open)
        self._silent -= set(every)
        self._close(every, reset=True)

    def freeze(self) -> None:
        """Let nothing through, as if a cable were pulled; what is on its way arrives after :meth:`heal`."""
        self._passing.clear()

    def half_open(self) -> None:
        """Forget the present connections as a firewall does: neither end hears of it, and their bytes go into nothing."""
        with self._mutex:
            self._silent |= self._open

    def heal(self) -> None:
        """Be whole again; what was forgotten stays forgotten."""
        self._cut, self.delay_s = False, 0.0
        self._passing.set()

    def close(self) -> None:
        """End everything."""
        self.heal()
        self._listener.close()
        self.reset()
