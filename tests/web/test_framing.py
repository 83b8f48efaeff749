"""Requests that a proxy and the dashboard could end at different places."""

from __future__ import annotations

import socket

from tests.support.commands import Ems
from tests.web.test_descriptors import ems, port_of

__all__ = ["ems"]  # the fixture

INNER = b"GET /audit HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-User: ann\r\n\r\n"


def test_a_request_with_two_lengths_is_refused_and_its_connection_ends(ems: Ems) -> None:
    with ems.running("web", "--port", "0") as web:
        with socket.create_connection(("127.0.0.1", port_of(web)), timeout=30) as client:
            body = b"0\r\n\r\n" + INNER
            client.sendall(
                b"POST /do/pause HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body
            )
            answered = b""
            while part := client.recv(4096):
                answered += part
        assert web.stop() == 0
    assert answered.startswith(b"HTTP/1.1 400 ") and answered.count(b"HTTP/1.1") == 1, answered
