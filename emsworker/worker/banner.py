"""The banner: what a worker or a beat runs, logged once when it starts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from emsworker import __version__
from emsworker.core.config import Settings
from emsworker.core.counted import counted
from emsworker.core.servers import parse_servers
from emsworker.core.tags import named
from emsworker.core.url import redact_url
from emsworker.worker.app_inspection import AppInspection, RouteFacts
from emsworker.worker.child_spec import ChildSpec

log = logging.getLogger(__name__)

_NAMED = 30
_LABEL_WIDTH = 12

Facts = Mapping[str, str | Sequence[str]]


def log_worker(
    spec: ChildSpec, facts: AppInspection, settings: Settings, processes: int, *, with_beat: bool, solo: bool = False
) -> None:
    """Log what a worker runs.

    Args:
        settings: of the command; its address is the stream's.
        processes: the number of child processes.
        with_beat: whether the worker runs a beat.
        solo: it has no time limits.
    """
    consumed, left, heard = facts.consumed(spec), facts.left(spec), facts.heard(spec)
    threads = spec.threads or settings.threads
    _log(
        f"worker {spec.name}",
        {
            "app": f"{facts.name} ({spec.app})",
            **_servers(settings, facts.server),
            "consumes": [
                f"{one.topic}/{one.group}, timeout {one.timeout_s:g} s: {_names(one.names)}" for one in consumed
            ]
            or "nothing",
            **(
                {"leaves": [f"{one.topic}/{one.group}, which requires {named(one.requires)}" for one in left]}
                if left
                else {}
            ),
            **({"tags": ", ".join(spec.tags)} if spec.tags else {}),
            **_shared_topics(consumed),
            **({"broadcasts": ", ".join(heard)} if heard else {}),
            "processes": f"{processes} x {counted(threads, 'thread')}",
            "limits": "none holds with --solo" if solo else _limits(settings),
            "beat": "runs here too" if with_beat else "is left to others (--no-beat)",
        },
    )


def _shared_topics(consumed: Sequence[RouteFacts]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for one in consumed:
        groups.setdefault(one.topic, []).append(one.group)
    shared = [
        f"{topic} has {counted(len(names), 'group')}: each reads all of it and passes over the others' calls"
        for topic, names in groups.items()
        if len(names) > 1
    ]
    return {"shared": shared} if shared else {}


def log_beat(settings: Settings, server: str) -> None:
    """Log what a beat runs on."""
    _log("beat", _servers(settings, server))


def _log(what: str, facts: Facts) -> None:
    lines = "".join(
        f"\n  {label if number == 0 else '':{_LABEL_WIDTH}}{text}"
        for label, value in facts.items()
        for number, text in enumerate([value] if isinstance(value, str) else value)
    )
    log.info("EMS %s, %s%s", __version__, what, lines, extra={"version": __version__, **facts, "details": lines})


def _servers(settings: Settings, server: str) -> dict[str, str]:
    assert settings.url is not None, "of a command"
    redis = "none: idle workers poll" if settings.redis_url is None else redact_url(settings.redis_url)
    others = {f"server {one.name}": redact_url(one.url) for one in parse_servers(settings.servers)}
    return {"stream": redact_url(settings.url), **others, "server": server, "redis": redis}


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _limits(settings: Settings) -> str:
    limits = {
        "soft limit": settings.soft_time_limit_s,
        "hard limit": settings.hard_time_limit_s,
        "stop": settings.stop_timeout_s,
    }
    return ", ".join(f"{name} {'none' if seconds is None else f'{seconds:g} s'}" for name, seconds in limits.items())
