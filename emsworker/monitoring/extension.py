"""Metrics of the stream, and files for Prometheus and Grafana."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "monitoring",
    __package__,
    commands={
        "monitoring": Command(
            "emsworker.monitoring.commands:monitoring",
            "Serve the metrics of a stream; write a dashboard and rules for them.",
        )
    },
)
