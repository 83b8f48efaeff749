"""The streams that this process has opened for Celery, by URL and options."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from emsworker.extending.apps import Beat, MysqlBroker
from emsworker.extending.database import Database, Session, check_extension, check_version
from emsworker.extending.processes import forks, until_connected
from emsworker.integrations.celery.bindings import Bindings
from emsworker.integrations.celery.extension import EXTENSION
from emsworker.integrations.celery.fanout import LocalQueues
from emsworker.integrations.celery.options import StreamOptions
from emsworker.integrations.celery.refusals import Refusals, in_task
from emsworker.integrations.celery.revocations import Revocations
from emsworker.integrations.celery.sender import QueueSender
from emsworker.integrations.celery.url import StreamUrl

_LAST_S = 5.0


class Stream:
    """A stream that is used by Celery; thread-safe, and one for all connections of a process with the same URL.

    Attributes:
        url: without secrets it is ``url.shown()``.
        options: the options of the URL and of the transport.
        broker: topics, sending and sessions.
        bindings: exchanges, queues and bindings.
        local: the queues that live in this process.
        sender: publishes.
        revocations: of tasks for later.
        budget: limits of the body of a message.
    """

    def __init__(self, url: StreamUrl, options: StreamOptions) -> None:
        self.url, self.options, self.budget = url, options, options.budget
        settings = options.settings(url.database)
        self.broker = MysqlBroker(settings, lambda name: settings.new_topic(), in_task)
        self.bindings = Bindings(self.broker, options)
        self.local = LocalQueues(self.broker)
        self.sender = QueueSender(self.broker, self.bindings, options)
        self.revocations = Revocations(self.broker)
        self._lock = forks.Lock()
        self._probe: Session | None = None
        self._beat: Beat | None = None
        self._users = 0
        self._refusals = Refusals()

    def enter(self) -> None:
        """Note one more connection."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """End the side threads with the last connection."""
        with self._lock:
            self._users -= 1
            beat, self._beat = (self._beat, None) if not self._users else (None, self._beat)
            if not self._users:
                self.local.close()
        if beat is not None:
            beat.stop()
            beat.join(_LAST_S)

    def connect(self, timeout_s: float | None = None) -> None:
        """Check that the stream can be used; a task waits for it as long as a send does.

        Args:
            timeout_s: seconds that the attempt may take, by default those of the options.

        Raises:
            ConnectionLost: the server cannot be reached.
            StoreUnavailable: it could not be reached for all that time, in a task.
            SchemaMissing: ``ems migrate`` has not been run.
            AccessDenied, TlsError: the user may not use the tables, or TLS fails; the first time.
        """
        if in_task():  # a child of a worker connects when its first task sends: that is not the start of a program
            until_connected(lambda: self._check(timeout_s), self.broker.settings.publish_timeout_s)
        else:
            self._check(timeout_s)
        _ = self.broker.database

    def _check(self, timeout_s: float | None) -> None:
        with self._lock:
            if self._probe is None:
                connect_s = min(timeout_s or math.inf, self.options.connect_timeout_s)
                at_once = Database(self.url.database, connect_s, outlasts_refusal=in_task)
                self._probe = at_once.session(patient=False)
            with self._refusals.apart():
                check_version(self._probe)
                check_extension(self._probe, EXTENSION)

    def maintain(self) -> None:
        """Run the maintenance services of the stream in this process, unless the options forbid it."""
        with self._lock:
            if self.options.beat and (self._beat is None or not self._beat.is_alive()):
                self._beat = Beat(self.broker.database, self.broker.settings, lambda name, error: None)
                self._beat.start()


_lock = forks.Lock()
_streams: dict[tuple[int, str, StreamOptions], Stream] = {}


def open_stream(url: StreamUrl, given: Mapping[str, Any]) -> Stream:
    """Return the stream of a URL; nothing is connected yet. A forked child gets one of its own.

    Args:
        given: ``broker_transport_options``, or those of the result backend.

    Raises:
        ConfigError: an option is wrong.
    """
    options = StreamOptions.load(url.options, given)
    key = (os.getpid(), url.database, options)
    with _lock:
        if key not in _streams:
            _streams[key] = Stream(url, options)
        return _streams[key]
