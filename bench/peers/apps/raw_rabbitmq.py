"""What RabbitMQ and its Python client can do at all: a durable queue, confirmed one by one, acknowledged one by one."""

from __future__ import annotations

import json
import os
import signal
from typing import Any
from urllib.parse import urlsplit

import amqp

from bench.peers.apps import tally

_QUEUE = os.environ["BENCH_QUEUE"]
_channels: list[Any] = []
_stopping: list[int] = []


def _connect(*, confirm: bool) -> Any:
    url = urlsplit(os.environ["BENCH_BROKER"])
    connection = amqp.Connection(
        f"{url.hostname}:{url.port}", userid=url.username, password=url.password, confirm_publish=confirm
    )
    connection.connect()
    channel = connection.channel()
    channel.queue_declare(_QUEUE, durable=True, auto_delete=False)
    return channel


def send(number: int) -> None:
    if not _channels:
        _channels.append(_connect(confirm=True))
    message = amqp.Message(json.dumps({"number": number}), delivery_mode=2)
    _channels[0].basic_publish(message, routing_key=_QUEUE)


def main() -> None:
    """A worker process."""
    signal.signal(signal.SIGTERM, lambda *_: _stopping.append(1))
    channel = _connect(confirm=False)
    channel.basic_qos(0, 128, False)

    def run(message: Any) -> None:
        tally.ran(json.loads(message.body)["number"])
        channel.basic_ack(message.delivery_tag)

    channel.basic_consume(_QUEUE, callback=run)
    while not _stopping:
        try:
            channel.connection.drain_events(timeout=0.2)
        except TimeoutError:
            continue


if __name__ == "__main__":
    main()
