"""The services of the leading beat."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.declaration import LedStream, Service
from emsworker.flows.operating.retention import sweep_flows
from emsworker.flows.operating.watching import WatchFlows


def services(stream: LedStream) -> Sequence[Service]:
    """Return the services of the leading beat."""
    return [WatchFlows(stream.server), sweep_flows]
