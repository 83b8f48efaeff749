"""Monitoring: the metrics of the stream, the program that serves them, and files for Prometheus and Grafana."""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.monitoring.metrics import StreamMetrics as StreamMetrics
else:
    __getattr__ = lazy_names(__name__, {"emsworker.monitoring.metrics": "StreamMetrics"})

__all__ = ["StreamMetrics"]
