"""The streams that this process has opened for Celery, by URL and options."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from emsworker.broker.mysql import MysqlBroker
from emsworker.core.model import TopicKind
from emsworker.core.process import forks
from emsworker.integrations.celery.options import Options
from emsworker.integrations.celery.url import StreamUrl


class Stream:
    """A stream that is used by Celery; thread-safe, and one for all connections of a process with the same URL.

    Attributes:
        url: without secrets it is ``url.shown()``.
        options: the options of the URL and of the transport.
        broker: topics, sending and sessions.
    """

    def __init__(self, url: StreamUrl, options: Options) -> None:
        self.url, self.options = url, options
        self.broker = MysqlBroker(options.settings(url.database), lambda name: TopicKind.CLUSTER)


_lock = forks.Lock()
_streams: dict[tuple[int, str, Options], Stream] = {}


def open_stream(url: StreamUrl, given: Mapping[str, Any]) -> Stream:
    """Return the stream of a URL; nothing is connected yet. A forked child gets one of its own.

    Args:
        given: ``broker_transport_options``, or those of the result backend.

    Raises:
        ConfigError: an option is wrong.
    """
    options = Options.load(url.options, given)
    key = (os.getpid(), url.database, options)
    with _lock:
        if key not in _streams:
            _streams[key] = Stream(url, options)
        return _streams[key]
