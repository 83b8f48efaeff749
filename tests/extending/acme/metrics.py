"""Metrics of the stream."""

from acme.notes import count_late
from prometheus_client.core import GaugeMetricFamily


def measure_notes(session):
    """Count notes that have expired."""
    yield GaugeMetricFamily("acme_notes_expired", "Notes that have expired", value=count_late(session, 0))


def metrics():
    return [measure_notes]
