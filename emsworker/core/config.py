"""Configuration object, from keyword arguments, ``EMS_*`` variables or a module; all settings are checked together."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from emsworker.core.budget import MAX_BYTES, MAX_OBJECTS, Budget
from emsworker.core.codec import COMPRESSIONS
from emsworker.core.errors import ConfigError, InvalidName, Problem, text_of
from emsworker.core.extras import hint_if_missing
from emsworker.core.ids import check_name
from emsworker.core.ladder import DEFAULT_LADDER, DEFAULT_MAX_ATTEMPTS, Ladder
from emsworker.core.model import ATTEMPTS, LADDER, LEVELS, MESSAGE_BYTES, TIMEOUT, TopicKind
from emsworker.core.options import (
    Check,
    Option,
    choice,
    flag,
    nearest,
    number,
    option,
    options_of,
    probably_meant,
    problems_in,
    raise_problems,
    seconds,
    shown,
    text,
    texts,
    whole,
)
from emsworker.core.process import forks
from emsworker.core.servers import parse_servers
from emsworker.core.url import DatabaseUrl, check_signs

log = logging.getLogger(__name__)

_SHORTEST_SECRET = 16
TopicSettings = Callable[[str], Mapping[str, Any]]  # returns the settings with which a topic is created, by its name
SERVER_MARK = "{server}"  # in `dead_man_url`
_MOST_KEPT = 1_000_000_000
_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def _check_installed(name: str) -> None:
    """Check that the extra of a named package is installed."""
    if hint := hint_if_missing(name):
        raise ValueError(hint)


def _check_redis_url(value: str) -> None:
    if not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    check_signs(value)
    try:
        _ = urlsplit(value).port
    except ValueError:  # its own text may repeat the password
        raise ValueError("its host or port is malformed; write redis://:password@host:6379/0") from None


def _check_secret(value: str) -> None:
    if len(value) < _SHORTEST_SECRET:
        raise ValueError(f"must have at least {_SHORTEST_SECRET} characters")


def _check_http_url(value: str) -> None:
    try:
        parts = urlsplit(value)
        _ = parts.port
    except ValueError:
        raise ValueError("its host or port is malformed; write https://host/path") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address like https://host/path")


def _check_allocator(value: str) -> None:
    if value not in ("mysql", "redis") and not _CLASS.fullmatch(value):
        raise ValueError("must be mysql, redis, or a class that implements Allocator, like myshop.offsets:Allocator")


def _check_name(value: str) -> None:
    try:
        check_name("it", value)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _one_of(*names: str) -> Callable[[str], object]:
    return choice(names).verify


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of EMS. Each can also be given as ``EMS_<NAME>``; names of durations end in ``_s`` and count seconds.

    Raises:
        ConfigError: one or more settings are wrong; all of them are listed.
    """

    url: str | None = option(
        None,
        text(DatabaseUrl.parse),
        help="the MySQL server, mysql://user:password@host:3306/database; by default the local stream",
        secret=True,
    )
    read_url: str | None = option(
        None,
        text(DatabaseUrl.parse),
        help="a replica, or several, that commands, the dashboard and metrics read from; never what decides",
        secret=True,
    )
    servers: str = option(
        "",
        Check(parse_servers),
        help="further servers, and patterns of the topics that are created there: name=mysql://... orders.* billing",
        secret=True,
    )
    redis_url: str | None = option(
        None, text(_check_redis_url), help="a Redis server for notifications and the redis allocator", secret=True
    )
    allocator: str = option(
        "mysql",
        text(_check_allocator),
        help="the allocator of offsets: mysql, redis, or a class, module:Class",
    )
    topic: str = option("default", text(_check_name), help="the topic of tasks that name none")
    group: str = option("workers", text(_check_name), help="the group of tasks that name none")
    serializer: str = option(
        "json",
        text(_check_installed),
        help="the serializer of bodies: json, msgpack, yaml, pickle, or another one of kombu",
    )
    compression: str | None = option(
        None,
        text(_one_of(*COMPRESSIONS), _check_installed),
        help="the compression of bodies: zlib, bzip2, lzma or zstd",
    )
    accept: tuple[str, ...] = option(
        ("json",),
        texts(_check_installed),
        help="the serializers that are accepted; pickle runs code, so name it only if you trust every producer",
    )
    auto_create: bool = option(True, flag(), help="create topics and groups on first use")
    eager: bool = option(False, flag(), help="run tasks at once when they are sent, without a server: for tests")
    publishing: bool = option(True, flag(), help="off: refuse every send of this process")
    max_message_bytes: int = option(4 << 20, MESSAGE_BYTES, help="`max_message_bytes` of topics created on first use")
    priorities: int = option(1, LEVELS, help="the number of priority levels of topics created on first use; 1 for none")
    keep_done_s: float = option(
        3600.0, seconds(), help="`keep_done_s` of topics that are created on first use for tasks; 0: not at all"
    )
    retention_s: float = option(
        604800.0,
        seconds(),
        help="`retention_s` of topics that are created on first use for subscriptions; 0: for ever",
    )
    max_decoded_bytes: int = option(
        MAX_BYTES,
        whole(1, 1 << 40),
        help="the maximum size of a decompressed body; a larger one becomes a dead letter at once",
    )
    max_decoded_objects: int = option(
        MAX_OBJECTS,
        whole(1, 1 << 40),
        help="the maximum number of objects in a body, which are brackets, commas and colons in JSON",
    )
    processes: int = option(0, whole(0, 1024), help="child processes of a worker; 0: one for each processor")
    threads: int = option(4, whole(1, 1024), help="consumer threads in each process")
    async_threads: int = option(
        8, whole(1, 1024), help="the threads of a process on which the sends and look-ups of its coroutines run"
    )
    max_tasks_per_child: int = option(
        0, whole(0, _MOST_KEPT), help="replace a child process after this number of messages; 0: never"
    )
    max_memory_per_child: int = option(
        0, whole(0, _MOST_KEPT), help="replace a child process with more resident memory than this, in MiB; 0: never"
    )
    start_timeout_s: float = option(
        120.0, seconds(1), help="the maximum time for a child process to load the app and connect; then it is killed"
    )
    batch: int = option(500, whole(1, 100_000), help="the maximum number of messages in a claim")
    batch_bytes: int = option(4 << 20, whole(1, 1 << 30), help="the maximum size of the bodies in a claim, in bytes")
    claim_s: float = option(0.5, seconds(0.001), help="the desired run time of a claim")
    ack_interval_s: float = option(
        0.1, seconds(0.01), help="the interval at which finished messages are acked while a claim runs"
    )
    gap_timeout_s: float = option(1.0, seconds(0.01), help="the age at which a hole in a partition is closed")
    poll_min_s: float = option(0.005, seconds(0.001), help="the shortest polling interval of an idle worker")
    poll_max_s: float = option(1.0, seconds(0.001), help="the longest polling interval of an idle worker")
    timeout_s: float = option(60.0, TIMEOUT, help="the maximum run time of a message; then it is moved to retry")
    ladder: str = option(DEFAULT_LADDER, LADDER, help="the delays between attempts")
    max_attempts: int = option(DEFAULT_MAX_ATTEMPTS, ATTEMPTS, help="the maximum number of runs of a message")
    jitter: float = option(0.1, number(0, 1), help="the largest share by which a delay is lengthened at random")
    soft_time_limit_s: float | None = option(
        None, seconds(0.001), help="the run time after which SoftTimeLimitExceeded is raised in the handler"
    )
    hard_time_limit_s: float | None = option(
        None, seconds(0.001), help="the run time after which the process is replaced"
    )
    lease_s: float = option(15.0, seconds(0.5), help="the duration of a client's lease")
    renew_s: float = option(5.0, seconds(0.1), help="the interval at which a process renews its leases")
    lease_margin_s: float = option(2.0, seconds(), help="the last part of a lease, in which it is no longer relied on")
    beat_s: float = option(1.0, seconds(0.05), help="the interval at which the beat's services run")
    beat_lease_s: float = option(5.0, seconds(0.2), help="the duration of the leading beat's lease")
    sample_s: float = option(
        10.0, seconds(), help="the interval at which the beat samples the numbers of all groups, for charts; 0: never"
    )
    sample_keep_s: float = option(259200.0, seconds(60), help="the time for which samples are kept")
    task_figures_s: float = option(
        0.0,
        seconds(),
        help="the interval at which workers write figures by task, for `ems tasks` and the dashboard; 0: never",
    )
    keep_log_lines: int = option(
        0, whole(0, 1000), help="the number of log lines of each attempt that workers keep, the last ones; 0: none"
    )
    log_lines_keep_s: float = option(604800.0, seconds(60), help="the time for which log lines of attempts are kept")
    audit_keep_s: float = option(
        31536000.0, seconds(), help="the time for which the beat keeps rows of the audit; 0: for ever"
    )
    flow_keep_s: float = option(
        604800.0, seconds(), help="the time for which the beat keeps flows that have ended; 0: for ever"
    )
    refused_keep_s: float = option(
        604800.0, seconds(), help="the time for which the beat keeps refused rows of ems_publish; 0: for ever"
    )
    refused_keep_rows: int = option(
        100_000,
        whole(1, 10_000_000),
        help="the number of refused rows of ems_publish that the beat keeps, the newest",
    )
    refused_keep_bytes: int = option(
        1 << 30,
        whole(1, 1 << 50),
        help="the bytes of refused rows of ems_publish that the beat keeps, the newest",
    )
    alarm_commands: tuple[str, ...] = option(
        (), texts(), help="the programs that alarms may run on this machine, as their commands name them"
    )
    alarm_secret: str | None = option(
        None, text(_check_secret), help="the secret that signs what the webhooks of alarms get", secret=True
    )
    dead_man_url: str | None = option(
        None,
        text(_check_http_url),
        help="a URL that the leading beat asks while all is well, for a service that raises an alarm if it stops; "
        "{server} in it stands for the name of its server",
        secret=True,
        shown=lambda url: "***",  # such a service knows its clients by the path
    )
    dead_man_s: float = option(60.0, seconds(1), help="the interval at which `dead_man_url` is asked")
    publish_timeout_s: float = option(30.0, seconds(0.1), help="the maximum time of a send, reconnects included")
    connect_timeout_s: float = option(10.0, seconds(0.1), help="the maximum time of one attempt to connect")
    result_backend: str = option("mysql", choice(("mysql", "redis")), help="the store of results: mysql or redis")
    result_ttl_s: float = option(86400.0, seconds(0.1), help="the time for which results are kept")
    stop_timeout_s: float = option(60.0, seconds(), help="the time that running messages have to finish after SIGTERM")
    stop_hooks_timeout_s: float = option(
        5.0, seconds(), help="the time that `on_process_stop` of middleware has when a worker process ends"
    )

    def __post_init__(self) -> None:
        raise_problems([*problems_in(self), *self._contradictions()])

    def _contradictions(self) -> Iterator[Problem]:
        with suppress(TypeError):  # a value of the wrong type is a problem by itself
            if self.lease_s <= self.renew_s + self.lease_margin_s:
                fix = "must exceed renew_s + lease_margin_s, or leases run out between renewals"
                yield Problem("lease_s", str(self.lease_s), fix)
            if self.beat_lease_s <= self.beat_s:
                yield Problem("beat_lease_s", str(self.beat_lease_s), "must exceed beat_s")
            if self.poll_max_s < self.poll_min_s:
                yield Problem("poll_max_s", str(self.poll_max_s), "must be at least poll_min_s")
        for name in ("allocator", "result_backend"):
            if getattr(self, name) == "redis" and self.redis_url is None:
                yield Problem("redis_url", "None", f"{name} = redis needs it")
        if self.servers and self.dead_man_url is not None and SERVER_MARK not in self.dead_man_url:
            fix = (
                f"must contain {SERVER_MARK}: with one switch for all servers, one's pings would hide another's silence"
            )
            yield Problem("dead_man_url", "***", fix)

    @forks.lazy
    def budget(self) -> Budget:
        """The limits of a body that is decoded."""
        return Budget(self.max_decoded_bytes, self.max_decoded_objects)

    def new_topic(self, kind: TopicKind = TopicKind.CLUSTER, *, for_tasks: bool = False) -> dict[str, Any]:
        """Return the settings of a topic that is created on first use.

        Args:
            for_tasks: its messages are calls, kept for a while after they are done; a stream, which others may begin to
                read later, is kept for longer.
        """
        ordered = kind is TopicKind.BROADCAST  # a broadcast is read in its order
        kept = {"keep_done_s": self.keep_done_s} if for_tasks else {"retention_s": self.retention_s or None}
        return {
            "kind": kind,
            "max_message_bytes": self.max_message_bytes,
            "priorities": 1 if ordered else self.priorities,
            **kept,
        }

    def retry_ladder(self) -> Ladder:
        """Return the ladder of groups that set none."""
        return Ladder.parse(self.ladder, self.max_attempts, self.jitter)

    @classmethod
    def load(cls, module: str | None = None, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """Load settings: keyword arguments override ``EMS_*`` variables, which override a module's names.

        Args:
            module: dotted name of a module with lower-case settings; ``EMS_CONFIG`` can name it instead.
            environ: the environment, by default that of the process. An ``EMS_*`` variable that is no setting is logged
                and ignored, because other software sets variables, too.
            given: settings by name.

        Raises:
            ConfigError: naming every wrong setting.
        """
        environ = os.environ if environ is None else environ
        known = options_of(cls)
        problems = [
            Problem(name, shown(name, value), f"there is no such setting; {nearest(name, known)}")
            for name, value in given.items()
            if name not in known
        ]
        values = _from_module(module or environ.get("EMS_CONFIG"), known, problems)
        values |= _from_environ(environ, known, problems)
        values |= {name: value for name, value in given.items() if name in known}
        try:
            settings = cls(**values)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        raise_problems(problems)
        return settings


# Variables of the project that are not settings of the app.
_OTHER_VARIABLES = frozenset(
    {
        "EMS_CONFIG",
        "EMS_HTTP",
        "EMS_LOCAL_DIR",
        "EMS_APP",
        "EMS_MARIADB_ROOT",
        "EMS_MYSQL_ROOT",
        "EMS_MYSQL_ROUTER_ROOT",
        "EMS_CACHE_DIR",
        "EMS_PROFILES",
        "EMS_URL_NAME",
        "EMS_WEB_OIDC_SECRET",
        "EMS_WEB_OPERATOR_URL",
        "EMS_WEB_SESSION_KEY",
    }
)

# Kubernetes tells every pod of each Service by such variables: of one named `ems`, or `ems-monitoring`.
_OF_KUBERNETES = re.compile(
    r"EMS(_\w+)?_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
)


def _from_module(name: str | None, known: Collection[str], problems: list[Problem]) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        module = import_module(name)
    except Exception as error:  # a user's module may raise anything
        problems.append(Problem("EMS_CONFIG", name, f"the module cannot be imported: {text_of(error)}"))
        return {}
    values = {key: value for key, value in vars(module).items() if key in known}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _from_environ(environ: Mapping[str, str], known: Mapping[str, Option], problems: list[Problem]) -> dict[str, Any]:
    values = {}
    for variable, name in _settings_among(environ):
        if name not in known:
            _tell_once(variable)
            continue
        value = environ[variable]
        try:
            values[name] = known[name].read(value)
        except ValueError as error:
            problems.append(Problem(variable, shown(variable, value), str(error)))
    return values


def _settings_among(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables that could be settings, each with the setting's name."""
    for variable in environ:
        if (
            variable.startswith("EMS_")
            and not variable.startswith("EMS_TEST_")
            and variable not in _OTHER_VARIABLES
            and not _OF_KUBERNETES.fullmatch(variable)
        ):
            yield variable, variable.removeprefix("EMS_").lower()


def unknown_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the ``EMS_*`` variables that are no settings, with a hint for each."""
    known = options_of(Settings)
    return {variable: _hint(variable) for variable, name in _settings_among(environ) if name not in known}


def _hint(variable: str) -> str:
    meant = probably_meant(variable.removeprefix("EMS_").lower(), options_of(Settings))  # the prefix is no likeness
    return (
        f"there is no such setting; did you mean {f'EMS_{meant.upper()}'!r}?" if meant else "there is no such setting"
    )


_TOLD: set[str] = set()


def _tell_once(variable: str) -> None:
    if variable not in _TOLD:
        _TOLD.add(variable)
        log.warning("%s is ignored: %s", variable, _hint(variable))
