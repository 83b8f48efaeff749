"""A year of flights from New York through EMS: the sample application. ``./dev demo`` runs all of it."""

from sample_app import summary, tasks
from sample_app.app import app

__all__ = ["app", "summary", "tasks"]
