"""The broker in a worker's statistics, without secrets: ``celery inspect stats`` and Flower show them to everybody.

kombu keeps an address with ``ems+`` whole as the name of the host, and Celery takes out what kombu calls the password.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from emsworker.extending.settings import DatabaseUrl, redact_url
from emsworker.integrations.celery.url import StreamUrl


def info_without_secrets(info: Callable[..., dict[str, Any]], step: Any, consumer: Any) -> dict[str, Any]:
    """Wrap ``Connection.info`` of a worker: add the parts of its broker's address, without the password."""
    found = info(step, consumer)
    if consumer.connection and consumer.connection.transport.driver_type == "ems":
        found["broker"] |= _shown(consumer.connection)
    return found


def _shown(connection: Any) -> dict[str, Any]:
    at = DatabaseUrl.parse(StreamUrl.of_connection(connection).database)
    options = dict(connection.transport_options or {})
    if options.get("redis_url"):
        options["redis_url"] = redact_url(options["redis_url"])
    return {
        "hostname": at.host,
        "port": at.port,
        "userid": at.user,
        "virtual_host": at.database,
        "uri_prefix": None,
        "transport_options": options,
        "alternates": [redact_url(one) for one in connection.alt],
    }
