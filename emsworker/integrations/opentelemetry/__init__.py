"""OpenTelemetry: spans and metrics of sends and runs, as a middleware of an app."""

from emsworker.integrations.opentelemetry.middleware import OpenTelemetry

__all__ = ["OpenTelemetry"]
