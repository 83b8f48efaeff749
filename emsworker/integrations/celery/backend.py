"""Backend of results of Celery in the database of a stream: ``Celery(backend="ems+mysql://...")``."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from celery import states
from celery.backends import base
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import BaseKeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import BackendStoreError, ChordError
from celery.result import GroupResult
from celery.utils.functional import _regen
from celery.utils.time import get_exponential_backoff_interval
from kombu.exceptions import EncodeError
from kombu.utils.encoding import bytes_to_str

from emsworker.extending.errors import (
    ConfigError,
    Conflict,
    ConnectionLost,
    DecodeError,
    MessageTooLarge,
    Problem,
    StoreUnavailable,
    repr_of,
)
from emsworker.extending.processes import name_url
from emsworker.extending.settings import redact_url
from emsworker.integrations.celery.bodies import Total, unpacked
from emsworker.integrations.celery.startup import ends_worker, name_broker, starting_worker
from emsworker.integrations.celery.storage import Storage, lost, storage_of
from emsworker.integrations.celery.store import chords, results
from emsworker.integrations.celery.store.chords import ChordPart
from emsworker.integrations.celery.store.results import StoredValue, check_key
from emsworker.integrations.celery.url import StreamUrl
from emsworker.integrations.celery.waiting import UNREADABLE, ResultConsumer, values_of, wait_for_members, wait_with

log = logging.getLogger(__name__)

_COMPRESSED: bytes | None = getattr(base, "COMPRESSED_PAYLOAD_MAGIC", None)  # since Celery 5.7
_SWEEP = 1000


class StreamBackend(BaseKeyValueStoreBackend, AsyncBackendMixin):
    """Results, groups and chords in MySQL.

    Args:
        app: the application of Celery.
        url: ``mysql://user:password@host:port/database``, as Celery passes it on without ``ems+``.

    Raises:
        ConfigError: the URL is malformed.
    """

    ResultConsumer = ResultConsumer

    supports_native_join = True
    supports_result_compression = True
    supports_failure_expires = True
    # The beat of a stream deletes what has expired; where none runs, the daily task of Celery's own beat does.
    supports_autoexpire = False

    task_keyprefix = "task:"
    group_keyprefix = "group:"
    chord_keyprefix = "chord:"

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("expires_type", int)
        super().__init__(app, url=url, **kwargs)
        failure_expires = app.conf.get("result_failure_expires")
        self.failure_expires = self.expires
        if failure_expires is not None:
            self.failure_expires = self.prepare_expires(failure_expires, type=int)
        with ends_worker("result_backend"):
            self._storage = self._open(url or "")
        self._budget = self._storage.budget
        self.poller = self._storage.poller
        self.wait_for_news = self._storage.wait
        self.result_consumer = self.ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )

    def _open(self, url: str) -> Storage:
        try:
            storage = storage_of(url, self.app.conf.get("result_backend_transport_options") or {})
        except ValueError as error:
            fix = f"{error} (with ems+ before it)"
            raise ConfigError([Problem("result_backend", redact_url(f"ems+{url}"), fix)]) from None
        if is_start := starting_worker() is not None:
            name_broker(self.app)
        name_url("result_backend", StreamUrl.parse(url).database)
        if is_start:
            storage.check()
        return storage

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, with the password hidden unless it is asked for."""
        url = f"ems+{self.url}"
        return url if include_password else redact_url(url)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether a later try may succeed: every operation is idempotent."""
        return isinstance(exc, (StoreUnavailable, ConnectionLost, Conflict))

    # -- encoding ------------------------------------------------------------------------------------------------------

    def _encode(self, data: Any) -> Any:
        """Serialize a result; one that nobody could read fails its task, as one that has no form does."""
        content_type, encoding, payload = super()._encode(data)
        raw = payload.encode() if isinstance(payload, str) else payload
        try:
            self._budget.check_sent(raw, content_type, is_compressed=bool(getattr(self, "compression", None)))
        except MessageTooLarge as error:
            raise EncodeError(f"the result is too large: {error}") from None
        return content_type, encoding, payload

    def decode(self, payload: Any) -> Any:
        """Decode a result, a group or a part of a chord.

        Raises:
            DecodeError, ContentRefused: it is damaged, or exceeds ``max_decoded_bytes`` or ``max_decoded_objects``.
        """
        return super().decode(self._unpack(payload) if payload else payload)

    def add_to(self, total: Total, payload: bytes) -> None:
        """Add a result to those that are built together.

        Raises:
            DecodeError, ContentRefused: it, or all of them, exceed the limits.
        """
        total.add(self._unpack(payload), self.content_type)

    def _unpack(self, payload: bytes | str) -> bytes:
        raw, compression = payload.encode() if isinstance(payload, str) else bytes(payload), ""
        if _COMPRESSED is not None and raw.startswith(_COMPRESSED):
            head, _, raw = raw.removeprefix(_COMPRESSED).partition(b"\0")
            compression = head.decode("ascii", "replace")
        raw = unpacked(raw, compression, self.content_type, self.content_encoding, self._budget)
        if _COMPRESSED is not None and raw.startswith(_COMPRESSED):  # Celery would unpack that without limits
            raise DecodeError("the result is compressed twice")
        return raw

    # -- keys and values -----------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """Return a value, or ``None`` if there is none."""
        return self.mget([key])[0]

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of several keys, by few queries."""
        wanted = [self.key_t(key) for key in keys]
        found = self._storage.find(wanted)
        return [found.get(key) for key in wanted]

    def set(self, key: bytes, value: bytes | str) -> None:
        """Store a value that may be overwritten."""
        self._set_with_state(key, value, states.PENDING)

    def delete(self, key: bytes) -> None:
        """Delete a value."""
        self._storage.call(lambda session: results.delete(session, [self.key_t(key)]))

    def _set_with_state(self, key: bytes, value: bytes | str, state: str) -> None:
        self._write(self._entry(key, value, state, is_final=False))

    def _entry(self, key: bytes, value: bytes | str, state: str, is_final: bool) -> StoredValue:
        ttl_s = self.failure_expires if state == states.FAILURE else self.expires
        body = value.encode() if isinstance(value, str) else bytes(value)
        return StoredValue(check_key("the key of a result", self.key_t(key)), body, is_final, ttl_s or None)

    def _write(self, entry: StoredValue) -> None:
        try:
            self._storage.writer.put(entry)
        except MessageTooLarge as error:
            raise BackendStoreError(str(error)) from error

    # -- results -------------------------------------------------------------------------------------------------------

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        try:
            self._write(self._result_entry(task_id, result, state, traceback, request))
        except BackendStoreError as error:
            raise BackendStoreError(str(error), state=state, task_id=task_id) from error
        return result

    def _result_entry(self, task_id: str, result: Any, state: str, traceback: Any, request: Any) -> StoredValue:
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        key = self.get_key_for_task(task_id)
        return self._entry(key, self.encode(meta), state, is_final=state == states.SUCCESS)

    def forget(self, task_id: str) -> None:
        """Delete a result, and wait for it no longer."""
        super().forget(task_id)
        self.result_consumer.cancel_for(task_id)

    def cleanup(self) -> None:
        """Delete what has expired; ``celery.backend_cleanup`` calls it once a day."""
        for sweep in (results.sweep, chords.sweep):
            while self._storage.call(partial(sweep, limit=_SWEEP)) == _SWEEP:
                pass

    # Before Celery 5.7 only the first object of a task is told of its end, and any object that is collected ends the
    # waiting of all (its issue 4925).

    def _add_pending_result(self, task_id: str, result: Any, weak: bool = False) -> None:
        super()._add_pending_result(task_id, result, weak=weak)
        if (first := self.result_consumer.first_of(task_id)) is not None:
            wait_with(first, result)

    def remove_pending_result(self, result: Any) -> Any:
        """Wait with an object no longer."""
        first = self.result_consumer.first_of(result.id)
        if first is not None and first is not result:
            return result
        return super().remove_pending_result(result)

    # -- chords --------------------------------------------------------------------------------------------------------

    def apply_chord(self, header_result_args: Sequence[Any], body: Any, **kwargs: Any) -> None:
        """Begin a chord, before the tasks of its header are sent."""
        key = self._chord_key(header_result_args[0])
        self._storage.call(lambda session: chords.open_chord(session, key, self._chord_ttl_s))
        if isinstance(header_result_args[1], _regen):
            return
        header = self.app.GroupResult(*header_result_args)
        if any(isinstance(one, GroupResult) for one in header.results):  # the body gets the results in this structure
            header.save(backend=self)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Set the number of parts, before the last task of the header is sent."""
        key = self._chord_key(group_id)
        self._storage.call(lambda session: chords.set_size(session, key, chord_size, self._chord_ttl_s))

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """Expect one part more."""
        self._storage.call(lambda session: chords.add_one(session, self._chord_key(chord_id), self._chord_ttl_s))

    def mark_as_done(
        self,
        task_id: str,
        result: Any,
        request: Any = None,
        store_result: bool = True,
        state: str = states.SUCCESS,
    ) -> None:
        """Store a success; that of a chord's part is stored and counted by one packet."""
        if not (store_result and request and request.chord and request.group) or request.ignore_result:
            super().mark_as_done(task_id, result, request, store_result, state)
            return
        encoded = self.encode_result(result, state)
        entry = self._result_entry(task_id, encoded, state, None, request)
        self._insist(lambda: self._return_part(request, state, encoded, entry))

    def _insist(self, work: Callable[[], None]) -> None:
        """Repeat what fails, if `result_backend_always_retry` is on; not every Celery has a method for this."""
        for tries in itertools.count(1):
            try:
                work()
                return
            except Exception as error:
                if not (self.always_retry and self.exception_safe_to_retry(error)) or tries > self.max_retries:
                    raise
                log.warning("storing the end of a chord's part failed, and is repeated: %s", error)
                pause_ms = get_exponential_backoff_interval(
                    self.base_sleep_between_retries_ms, tries, self.max_sleep_between_retries_ms, True
                )
                time.sleep(pause_ms / 1000)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part; the last one sends the body."""
        if request.group and request.id:
            self._return_part(request, state, self.encode_result(result, state))

    def _return_part(self, request: Any, state: str, result: Any, entry: StoredValue | None = None) -> None:
        key, task_id = self._chord_key(request.group), check_key("task id", str(request.id).encode())
        outcome = self.encode([request.id, state, result])
        body = outcome.encode() if isinstance(outcome, str) else outcome
        part = ChordPart(key, request.group_index, task_id, body, self._chord_ttl_s)
        entries = [entry] if entry is not None else []
        try:
            if self._storage.keep(lambda session: chords.count(session, part, entries)):
                self._storage.stored(one.key for one in entries)
                return
        except MessageTooLarge as error:
            raise BackendStoreError(str(error), state=state, task_id=request.id) from error
        if entry is not None:
            self._write(entry)  # committed first: a body of nested groups reads it
        # Nothing is waited for while the chord's row is locked: a part that is waited for may want to count there.
        # Celery before 5.7 takes a chord with a group at the end of a chain for complete too early.
        nested = self._join_nested(request.group)
        self._storage.publish(lambda session: self._arrive(session, part, request, nested), self.app)

    def _arrive(self, session: Any, part: ChordPart, request: Any, nested: list[Any] | ChordError | None) -> None:
        if not chords.arrive(session, part, ()):
            return
        callback = maybe_signature(request.chord, app=self.app)
        try:
            values = self._values(session, part.chord, nested)
        except ChordError as error:  # it becomes the result of the body
            log.exception("chord %s failed", request.group)
            self.chord_error_from_stack(callback, error)
            return
        try:
            patient = getattr(self.app.amqp, "_retry_publish", None)  # since Celery 5.7
            if patient is None:
                callback.delay(values)
            else:
                patient(callback.delay, values)
        except Exception as error:
            if lost(error):
                raise  # with the transaction, which is run again
            # Nobody waits for this call but the worker: the error becomes the result of the body.
            log.exception("the body of chord %s could not be sent", request.group)
            self.chord_error_from_stack(callback, _chord_error(f"Callback error: {repr_of(error)}", error))

    def _join_nested(self, group_id: str) -> list[Any] | ChordError | None:
        """Wait for the results of a header with groups in it; ``None`` if there is no such header."""
        header = GroupResult.restore(group_id, backend=self)
        if header is None:
            return None
        try:
            total = Total(self._storage.together)
            wait_for_members(self, header, self.app.conf.result_chord_join_timeout, total)
            return values_of(header)
        except Exception as error:
            return _chord_error(f"Join error: {repr_of(error)}", error)

    def _values(self, session: Any, key: bytes, nested: list[Any] | ChordError | None) -> list[Any]:
        """Return the results of a chord's header, or raise ChordError for the first failure."""
        total = Total(self._storage.together)
        try:
            bodies = chords.take_parts(session, key, self._storage.together.max_bytes)
        except MessageTooLarge as error:
            raise _chord_error(f"The results of its header are too large: {error}", error) from error
        values = [self._value(body, total) for body in bodies]
        if isinstance(nested, ChordError):
            raise nested
        return values if nested is None else nested

    def _value(self, body: bytes, total: Total) -> Any:
        try:
            self.add_to(total, body)
            task_id, state, value = self.decode(body)
        except UNREADABLE as error:  # every later try would meet it again
            raise _chord_error(f"A result of its header cannot be read: {error}", error) from error
        if state in self.EXCEPTION_STATES:
            value = self.exception_to_python(value)
        if state in states.PROPAGATE_STATES:
            raise _chord_error(f"Dependency {task_id} raised {repr_of(value)}", value)
        return value

    def _chord_key(self, group_id: str) -> bytes:
        return check_key("the id of a chord", self.get_key_for_chord(group_id))

    @property
    def _chord_ttl_s(self) -> float | None:
        return getattr(self, "chord_expires", self.expires) or None  # of its own since Celery 5.7

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "expires": self.expires, "url": self.url})


def _chord_error(message: str, cause: Any) -> ChordError:
    error = ChordError(message)
    if isinstance(cause, Exception):
        error.__cause__ = cause
    return error
