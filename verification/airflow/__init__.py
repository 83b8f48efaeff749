"""Airflow's CeleryExecutor, unmodified, with EMS as broker and result backend."""
