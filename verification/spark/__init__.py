"""Spark on a real cluster: a standalone master with two workers, and Spark Connect; run by .venv-spark."""
