"""Airflow's processes, in an environment of their own: these tests run by ``./dev test-airflow`` only, which makes it."""

import os

collect_ignore_glob = [] if os.environ.get("EMS_TEST_AIRFLOW") else ["test_*.py"]
