"""Integrations with Celery, web frameworks and OpenTelemetry, one module or folder each; none imports another."""
