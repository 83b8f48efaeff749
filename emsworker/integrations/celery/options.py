"""Options of the transport and the result backend: in the query of a URL, or in ``broker_transport_options``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from emsworker.extending.errors import Problem
from emsworker.extending.settings import (
    Settings,
    choice,
    flag,
    nearest,
    option,
    option_field,
    options_of,
    problems_in,
    raise_problems,
    seconds,
    shown,
    whole,
)
from emsworker.extending.values import UNLIMITED_S, Budget

log = logging.getLogger(__name__)

# What kombu itself reads in `broker_transport_options`, for every transport.
_KOMBUS = frozenset(
    {
        "max_retries",
        "interval_start",
        "interval_step",
        "interval_max",
        "connect_retries_timeout",
        "retry_errors",
        "errback",
        "callback",
    }
)
# Options of kombu's other transports and Celery's other result backends, of 5.5 to 5.7: settings that were written for
# another broker stay as they are when its URL is replaced.
_OTHERS = """
ack_deadline_seconds ack_emulation ack_modify_batch_size auto_start_request body_encoding broadcast_collection
bulk_max_messages calc_queue_size capped_queue_size channel_max client-config client_name client_properties
conn_string connect_timeout connection_wait_time_seconds control_folder data_folder_in data_folder_out
deadletter_queue default_database default_hostname default_port enable_exactly_once_delivery expiration_seconds
fanout_patterns fanout_prefix fetch_message_attributes fifo_mode frame_max global_keyprefix health_check_interval
heartbeat init_extension kafka_admin_config kafka_common_config kafka_consumer_config kafka_producer_config
login_method master_name max_connections max_lock_renewal_duration max_poll_seconds message_tablename
messages_collection min_other_sentinels notify_throttle_interval_ms num_partitions on_blocked on_unblocked
peek_lock_seconds poll_interval_ms polling_interval pool_size pool_timeout port predefined_exchanges predefined_queues
priority_steps processed_folder queue_name_prefix queue_order_strategy queue_tablename queue_tags queues_collection
read_timeout readpreference reauth_check_interval region regioninfo replication_factor result_chord_ordered retry
retry_backoff_factor retry_backoff_max retry_on_error retry_on_timeout retry_policy retry_timeout_seconds retry_total
routing_collection sasl_mechanism sasl_mechanisms sentinel_fanout_compat sentinel_kwargs sep socket_connect_timeout
socket_keepalive socket_keepalive_options socket_settings socket_timeout sqs-creation-attributes sqs_base64_encoding
store_processed sts_role_arn sts_token_buffer_time sts_token_timeout supports_fanout topic_config ttl
uamqp_keep_alive_interval unacked_index_key unacked_key unacked_mutex_expire unacked_mutex_key
unacked_restore_interval unacked_restore_limit unacked_restore_throttle use_lock_renewal use_notify visibility_timeout
wait_time_seconds write_timeout
"""
# Refused with what to write instead: ignored, they would leave a connection without the TLS that somebody asked for.
_TLS = frozenset(
    {
        "is_secure",
        "secure",
        "security_protocol",
        "ssl",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_skip_hostname_check",
        "ssl_trustfile",
    }
)
# What takes the place of some.
_INSTEAD = {
    "visibility_timeout": "lease_s takes its place, and is renewed while a task runs",
    "connect_timeout": "connect_timeout_s takes its place",
    "socket_connect_timeout": "connect_timeout_s takes its place",
    "socket_timeout": "the option read_timeout_s of the URL takes its place",
    "read_timeout": "the option read_timeout_s of the URL takes its place",
    "priority_steps": "a queue has the priorities of its x-max-priority",
    "queue_name_prefix": "a database of its own keeps the queues of a project apart",
    "global_keyprefix": "a database of its own keeps the queues of a project apart",
}
_LEASE_PARTS = {"renew_s": 1 / 3, "lease_margin_s": 2 / 15}
_BEAT_PART, _BEAT_S = 2 / 15, 2.0  # of the lease, and at most


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """Options of the transport and the result backend.

    Raises:
        ConfigError: one or more are wrong; all of them are listed.
    """

    redis_url: str | None = option_field(
        replace(options_of(Settings)["redis_url"], help="a Redis server for wake-ups"), secret=True
    )
    lease_s: float = option(15.0, seconds(0.5), help="the duration of the lease of a process on what it has in hand")
    delivery_limit: int = option(
        20, whole(1, 65535), help="deliveries of a message before it becomes a dead letter; of queues without their own"
    )
    eta_threshold_s: float = option(
        5.0, seconds(), help="tasks whose ETA is further away wait in the stream; nearer ones wait in a worker"
    )
    confirm_publish: bool = option(True, flag(), help="off: publishing does not wait for the commit")
    priority_order: str = option(
        "high", choice(("high", "low")), help="the priority that is delivered first: high, 9, or low, 0, as with Redis"
    )
    event_ttl_s: float = option(300.0, seconds(10), help="the time for which broadcasts and events are kept")
    max_message_bytes: int = option(
        64 << 20, whole(1, 1 << 30), help="the maximum size of a message's body; at most what the server takes"
    )
    max_decoded_bytes: int = option_field(options_of(Settings)["max_decoded_bytes"])
    max_decoded_objects: int = option_field(options_of(Settings)["max_decoded_objects"])
    connect_timeout_s: float = option(4.0, seconds(0.1), help="the maximum time of an attempt to connect")
    beat: bool = option(True, flag(), help="run the maintenance services of the stream in consuming processes")

    def __post_init__(self) -> None:
        raise_problems(problems_in(self))

    @classmethod
    def load(cls, in_url: Mapping[str, str], given: Mapping[str, Any]) -> StreamOptions:
        """Load options: those of a URL override those of ``broker_transport_options``.

        Raises:
            ConfigError: naming every wrong option.
        """
        known, problems, values = options_of(cls), [], {}
        for name, value in (*given.items(), *in_url.items()):
            if name in known:
                values[name] = value
            elif name in _TLS:
                problems.append(Problem(name, shown(name, value), "write ssl_mode or ssl_ca into the URL instead"))
            elif name in _OTHERS.split():
                _tell_ignored(name)
            elif name in in_url or name not in _KOMBUS:
                problems.append(_unknown(name, value, known))
        for name in values.keys() & in_url.keys():
            try:
                values[name] = known[name].read(in_url[name])
            except ValueError as error:
                problems.append(Problem(name, shown(name, in_url[name]), str(error)))
        raise_problems(problems)
        return cls(**values)

    @property
    def budget(self) -> Budget:
        """The limits of a body or a result that is decoded."""
        return Budget(self.max_decoded_bytes, self.max_decoded_objects)

    @property
    def together(self) -> Budget:
        """The limits of the results that are built together: those of the body of a chord, which gets them all."""
        return Budget(self.max_message_bytes, self.max_decoded_objects, ("max_message_bytes", "max_decoded_objects"))

    def settings(self, url: str) -> Settings:
        """Return the settings of the stream; those that are no options here come from ``EMS_*`` variables."""
        known = options_of(Settings)
        parts = {name: min(share * self.lease_s, known[name].default) for name, share in _LEASE_PARTS.items()}
        settings = Settings.load(
            url=url,
            redis_url=self.redis_url,
            auto_create=True,
            lease_s=self.lease_s,
            **parts,
            max_message_bytes=self.max_message_bytes,
            max_decoded_bytes=self.max_decoded_bytes,
            max_decoded_objects=self.max_decoded_objects,
            connect_timeout_s=self.connect_timeout_s,
            timeout_s=UNLIMITED_S,  # Celery limits the time of its tasks itself
            ladder="0s",
            max_attempts=self.delivery_limit,
            jitter=0.0,
        )
        if settings.beat_s != known["beat_s"].default:
            return settings
        # Rarer than that of `ems worker`: here it is a part of what an idle worker asks of the server.
        rarer_s = min(_BEAT_S, _BEAT_PART * self.lease_s, settings.beat_lease_s / 2)
        return replace(settings, beat_s=max(settings.beat_s, rarer_s))


@cache
def _tell_ignored(name: str) -> None:
    """Log it once a process: options are read with every connection."""
    log.info("the option %s is ignored: %s", name, _INSTEAD.get(name, "it is one of another broker"))


def _unknown(name: str, value: Any, known: Mapping[str, Any]) -> Problem:
    return Problem(name, shown(name, value), f"there is no such option of Celery on a stream; {nearest(name, known)}")
