"""Configuration object, from keyword arguments, ``EMS_*`` variables or a module; all settings are checked together."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from emsworker.core.codec import COMPRESSIONS
from emsworker.core.durations import LONGEST_S, parse_duration
from emsworker.core.errors import ConfigError, InvalidName, Problem
from emsworker.core.extras import hint_if_missing
from emsworker.core.ids import check_name
from emsworker.core.ladder import DEFAULT_LADDER, DEFAULT_MAX_ATTEMPTS, Ladder
from emsworker.core.options import nearest
from emsworker.core.url import DatabaseUrl, redact, redact_url

Check = Callable[[Any], None]

MOST_PROCESSES, MOST_THREADS, MOST_KEPT = 1024, 1024, 1_000_000_000
_LONGEST_LADDER = 1000  # the width of its column in the table of groups

# Names whose values may be secrets and are never shown; an unknown setting may have such a name.
_SECRET_NAME = re.compile("passw|pwd|secret|token", re.IGNORECASE)


def _setting(default: Any, meaning: str, check: Check | None = None, *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"help": meaning, "check": check})


def _shown(name: str, value: Any) -> str:
    """Format a value for an error message, without secrets."""
    if _SECRET_NAME.search(name):
        return "***"
    return repr(redact_url(value)) if isinstance(value, str) else redact(repr(value))


def _at_least(least: float) -> Check:
    def check(value: float) -> None:
        if not least <= value:  # false for nan, too
            raise ValueError(f"must be at least {least:g}")
        if value > LONGEST_S:
            raise ValueError("must be a time of at most 100 years")

    return check


def _between(least: int, most: int) -> Check:
    def check(value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"must lie between {least} and {most}")

    return check


def _one_of(*choices: str | None) -> Check:
    def check(value: str | None) -> None:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(str(choice) for choice in choices)}")

    return check


def _installed(check: Check | None = None) -> Check:
    """Return a check that the extra of a named package is installed; a tuple names several."""

    def check_all(value: str | tuple[str, ...]) -> None:
        if check is not None:
            check(value)
        for name in (value,) if isinstance(value, str) else value:
            if hint := hint_if_missing(name):
                raise ValueError(hint)

    return check_all


def _check_url(value: str | None) -> None:
    if value is not None:
        DatabaseUrl.parse(value)


def _check_redis_url(value: str | None) -> None:
    if value is not None and not value.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("must begin with redis://, rediss:// or unix://")
    try:
        if value is not None:
            _ = urlsplit(value).port
    except ValueError:  # its own text may repeat the password
        raise ValueError("its host or port is malformed; write redis://:password@host:6379/0") from None


def _check_name(value: str) -> None:
    try:
        check_name("it", value)
    except InvalidName as error:
        raise ValueError(str(error)) from None


def _check_ladder(value: str) -> None:
    Ladder.parse(value)
    if len(value) > _LONGEST_LADDER:
        raise ValueError(f"must be at most {_LONGEST_LADDER} characters long")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of EMS. Each can also be given as ``EMS_<NAME>``; names of durations end in ``_s`` and count seconds.

    Raises:
        ConfigError: one or more settings are wrong; all of them are listed.
    """

    url: str | None = _setting(
        None,
        "the MySQL server, mysql://user:password@host:3306/database; the local stream if unset",
        _check_url,
        secret=True,
    )
    redis_url: str | None = _setting(
        None, "a Redis server for wake-ups and the redis allocator", _check_redis_url, secret=True
    )
    allocator: str = _setting("mysql", "what hands out offsets: mysql or redis", _one_of("mysql", "redis"))
    topic: str = _setting("default", "the topic of tasks that name none", _check_name)
    group: str = _setting("workers", "the group that runs tasks", _check_name)
    serializer: str = _setting(
        "json", "how bodies are written: json, msgpack, yaml, pickle, or a name known to kombu", _installed()
    )
    compression: str | None = _setting(
        None, "how bodies are compressed: zlib, bzip2, lzma or zstd", _installed(_one_of(None, *COMPRESSIONS))
    )
    accept: tuple[str, ...] = _setting(
        ("json",),
        "the serializers that are read; pickle runs code, so name it only if every producer is trusted",
        _installed(),
    )
    auto_create: bool = _setting(True, "create topics and groups on first use")
    eager: bool = _setting(False, "run what is sent at once, in this process and without a server: for tests")
    publishing: bool = _setting(True, "the global switch: off refuses every send of this process")
    max_message_bytes: int = _setting(
        4 << 20, "the largest encoded body of topics that are created here", _between(1, 1 << 30)
    )
    priorities: int = _setting(
        1, "how many levels of priority topics that are created here tell apart; 1 for none", _between(1, 10)
    )
    max_decoded_bytes: int = _setting(
        64 << 20,
        "the most bytes that a compressed body may unpack to; what is more is a dead letter",
        _between(1, 1 << 40),
    )
    processes: int = _setting(0, "child processes of a worker; 0 means one per processor", _between(0, MOST_PROCESSES))
    threads: int = _setting(4, "consumer threads in each process", _between(1, MOST_THREADS))
    max_tasks_per_child: int = _setting(
        0,
        "after how many messages a child process is replaced by a fresh one; 0 means never",
        _between(0, MOST_KEPT),
    )
    max_memory_per_child: int = _setting(
        0,
        "above how many MiB of resident memory a child process is replaced; 0 means never",
        _between(0, MOST_KEPT),
    )
    start_timeout_s: float = _setting(
        120.0, "how long a child process may take to load the app and connect; then it is killed", _at_least(1)
    )
    batch: int = _setting(500, "the most messages in one claim", _between(1, 100_000))
    batch_bytes: int = _setting(4 << 20, "the most body bytes in one claim", _between(1, 1 << 30))
    claim_s: float = _setting(0.5, "how much work a claim should hold", _at_least(0.001))
    ack_interval_s: float = _setting(0.1, "how often finished work is recorded while a claim runs", _at_least(0.01))
    gap_timeout_s: float = _setting(
        1.0, "how old the next neighbour of a hole must be before the hole is closed", _at_least(0.01)
    )
    poll_min_s: float = _setting(0.005, "the shortest pause of an idle poller", _at_least(0.001))
    poll_max_s: float = _setting(
        1.0, "the longest pause of a poller that has found nothing for ten times as long", _at_least(0.001)
    )
    timeout_s: float = _setting(60.0, "how long a message may run before it is moved to retry", _at_least(0.1))
    ladder: str = _setting(DEFAULT_LADDER, "the delays between attempts", _check_ladder)
    max_attempts: int = _setting(
        DEFAULT_MAX_ATTEMPTS, "how often a message is run before it is dead", _between(1, 65535)
    )
    jitter: float = _setting(0.1, "by up to which share a delay is lengthened at random, 0 to 1", _between(0, 1))
    soft_time_limit_s: float | None = _setting(
        None, "after this SoftTimeLimitExceeded is raised in the handler", _at_least(0.001)
    )
    hard_time_limit_s: float | None = _setting(None, "after this the process is replaced", _at_least(0.001))
    lease_s: float = _setting(15.0, "how long a client counts as alive after a renewal", _at_least(0.5))
    renew_s: float = _setting(5.0, "how often a process renews its leases", _at_least(0.1))
    lease_margin_s: float = _setting(2.0, "how long before its end a lease is no longer trusted", _at_least(0))
    beat_s: float = _setting(1.0, "how often the beat's services run", _at_least(0.05))
    beat_lease_s: float = _setting(5.0, "how long a beat leads after a renewal", _at_least(0.2))
    alarm_commands: tuple[str, ...] = _setting(
        (), "the programs that alarms may run on this machine, as their commands name them; none unless named"
    )
    publish_timeout_s: float = _setting(30.0, "how long a send may take, reconnects included", _at_least(0.1))
    connect_timeout_s: float = _setting(10.0, "how long one connection attempt may take", _at_least(0.1))
    result_backend: str = _setting(
        "mysql", "where results of tasks are kept: mysql or redis", _one_of("mysql", "redis")
    )
    result_ttl_s: float = _setting(86400.0, "how long results are kept", _at_least(0.1))
    stop_timeout_s: float = _setting(60.0, "how long running messages may go on after SIGTERM", _at_least(0))

    def __post_init__(self) -> None:
        problems = [*self._problems_one_by_one(), *self._problems_together()]
        if problems:
            raise ConfigError(problems)

    def _problems_one_by_one(self) -> list[Problem]:
        problems = []
        hints = get_type_hints(type(self))
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            try:
                _check_type(value, hints[item.name])
                if item.metadata["check"] is not None and value is not None:
                    item.metadata["check"](value)
            except (ValueError, TypeError) as error:
                problems.append(Problem(item.name, _shown(item.name, value), str(error)))
        return problems

    def _problems_together(self) -> list[Problem]:
        problems = []
        try:
            if self.lease_s <= self.renew_s + self.lease_margin_s:
                problems.append(
                    Problem(
                        "lease_s",
                        str(self.lease_s),
                        "must exceed renew_s + lease_margin_s, or leases run out between renewals",
                    )
                )
            if self.beat_lease_s <= self.beat_s:
                problems.append(Problem("beat_lease_s", str(self.beat_lease_s), "must exceed beat_s"))
            if self.poll_max_s < self.poll_min_s:
                problems.append(Problem("poll_max_s", str(self.poll_max_s), "must be at least poll_min_s"))
            if self.allocator == "redis" and self.redis_url is None:
                problems.append(Problem("redis_url", "None", "allocator = redis needs it"))
            if self.result_backend == "redis" and self.redis_url is None:
                problems.append(Problem("redis_url", "None", "result_backend = redis needs it"))
        except TypeError:
            pass  # a value of the wrong type is reported by itself
        return problems

    def retry_ladder(self) -> Ladder:
        """Return the ladder of groups that set none."""
        return Ladder.parse(self.ladder, self.max_attempts, self.jitter)

    @classmethod
    def load(cls, module: str | None = None, environ: Mapping[str, str] | None = None, **given: Any) -> Settings:
        """Load settings: keyword arguments override ``EMS_*`` variables, which override a module's names.

        Args:
            module: dotted name of a module with lower-case settings; ``EMS_CONFIG`` can name it instead.
            environ: the environment, by default that of the process.
            given: settings by name.

        Raises:
            ConfigError: naming every wrong setting.
        """
        environ = os.environ if environ is None else environ
        names = {item.name for item in dataclasses.fields(cls)}
        problems = [
            Problem(name, _shown(name, value), f"there is no such setting; {nearest(name, names)}")
            for name, value in given.items()
            if name not in names
        ]
        values = _from_module(module or environ.get("EMS_CONFIG"), names, problems)
        values |= _from_environ(environ, get_type_hints(cls), problems)
        values |= {name: value for name, value in given.items() if name in names}
        try:
            settings = cls(**values)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from None
        if problems:
            raise ConfigError(problems)
        return settings


# Variables of the project that are not settings of the app.
_OTHER_VARIABLES = frozenset(
    {"EMS_CONFIG", "EMS_LOCAL_DIR", "EMS_APP", "EMS_MYSQL_ROOT", "EMS_CACHE_DIR", "EMS_PROFILES"}
)


def _from_module(name: str | None, names: set[str], problems: list[Problem]) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        module = import_module(name)
    except Exception as error:  # a user's module may raise anything
        problems.append(Problem("EMS_CONFIG", name, f"the module cannot be imported: {error}"))
        return {}
    values = {key: value for key, value in vars(module).items() if key in names}
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _from_environ(environ: Mapping[str, str], hints: dict[str, Any], problems: list[Problem]) -> dict[str, Any]:
    values = {}
    for variable, text in environ.items():
        name = variable.removeprefix("EMS_").lower()
        if not variable.startswith("EMS_") or variable.startswith("EMS_TEST_") or variable in _OTHER_VARIABLES:
            continue
        if name not in hints:
            fix = f"there is no such setting; {nearest(variable, [f'EMS_{name.upper()}' for name in hints])}"
            problems.append(Problem(variable, _shown(variable, text), fix))
            continue
        try:
            values[name] = _read(text, hints[name])
        except ValueError as error:
            problems.append(Problem(variable, _shown(variable, text), str(error)))
    return values


def _read(text: str, hint: Any) -> Any:
    if get_origin(hint) in (Union, UnionType):
        return None if text == "" else _read(text, get_args(hint)[0])
    if get_origin(hint) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if hint is bool:
        return _read_bool(text)
    if hint is float:
        return parse_duration(text)
    if hint is int:
        return _read_int(text)
    return text


def _read_bool(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("must be true or false")


def _read_int(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _check_type(value: Any, hint: Any) -> None:
    if get_origin(hint) in (Union, UnionType):
        if value is not None:
            _check_type(value, get_args(hint)[0])
        return
    if get_origin(hint) is tuple:
        if not isinstance(value, tuple) or not all(isinstance(part, str) for part in value):
            raise TypeError("must be a tuple of strings")
        return
    if (isinstance(value, bool) and hint is not bool) or not isinstance(value, (int, float) if hint is float else hint):
        raise TypeError(f"must be of type {hint.__name__}, not {type(value).__name__}")
