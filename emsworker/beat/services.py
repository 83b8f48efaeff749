"""The services of the beat: those of the leader and those of standbys. Each returns its pause, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from emsworker.beat.expiry import (
    SWEEPS,
    correct_times,
    sweep_audit,
    sweep_clients,
    sweep_holds,
    sweep_refused,
)
from emsworker.beat.lanes import restart_lanes
from emsworker.beat.large_bodies import SweepBodies
from emsworker.beat.recovery import recover_claims
from emsworker.beat.relay import Relay
from emsworker.beat.retention import resolve, trim
from emsworker.beat.samples import TakeSamples, prune_samples
from emsworker.beat.schedules import fire_schedules
from emsworker.beat.server import WatchLocks, look_for_room
from emsworker.beat.skip_policies import skip_backlogs
from emsworker.beat.strays import bring_strays_back, clear_orphans
from emsworker.core.config import Settings
from emsworker.core.extension import Extension, parts
from emsworker.core.servers import MAIN
from emsworker.store import Session, extension_versions, has_tables

Service = Callable[[Session, Settings], float]
_LOOK_S = 30.0


class ExtensionService:
    """A service of an extension, run while the stream has the extension's tables.

    Args:
        extension: whose tables it needs.
        service: what is run.
    """

    def __init__(self, extension: Extension, service: Service) -> None:
        self.__name__: str = getattr(service, "__name__", type(service).__name__)
        self._extension = extension
        self._service = service
        self._has_tables = not has_tables(extension)

    def __call__(self, session: Session, settings: Settings) -> float:
        """Run the service, or look again later."""
        if not self._has_tables:
            self._has_tables = self._extension.name in extension_versions(session)
        return self._service(session, settings) if self._has_tables else _LOOK_S


@dataclass(frozen=True)
class LedStream:
    """The stream that a leading beat serves.

    Attributes:
        server: of several servers, the one that the stream is on.
        locks: the service that watches locks, whose numbers others need.
    """

    server: str = MAIN
    locks: WatchLocks = field(default_factory=WatchLocks)


def services_of_extensions(stream: LedStream) -> Iterator[ExtensionService]:
    """Make the services of each installed extension."""
    for extension, made in parts("services", stream):
        yield from (ExtensionService(extension, one) for one in made)


def standby_services() -> tuple[Service, ...]:
    """Return the services of a beat that does not lead, for one stream.

    After the leader's death it may take ``beat_lease_s`` until another one leads; due messages must not wait for that.
    """
    return (Relay(shortest_s=0.05, late_s=0.05),)


def leader_services(stream: LedStream) -> tuple[Service, ...]:
    """Return the services of the leader, for one stream: some remember what they have seen of it."""
    return (
        recover_claims,
        correct_times,
        sweep_clients,
        fire_schedules,
        Relay(),
        sweep_holds,
        trim,
        resolve,
        bring_strays_back,
        clear_orphans,
        SweepBodies(),
        skip_backlogs,
        restart_lanes,
        *SWEEPS,
        sweep_audit,
        sweep_refused,
        TakeSamples(),
        prune_samples,
        stream.locks,
        look_for_room,
        *services_of_extensions(stream),
    )
