"""The services of flows in the beat."""

from __future__ import annotations

from collections.abc import Sequence

from emsworker.extending.declaration import Service
from emsworker.flows.retention import sweep_flows


def services() -> Sequence[Service]:
    """Return them."""
    return (sweep_flows,)
