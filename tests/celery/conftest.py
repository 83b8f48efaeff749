"""A Celery project on private servers. These tests run by ``./dev test-celery`` only, which installs Celery."""

import os

collect_ignore_glob = [] if os.environ.get("EMS_TEST_CELERY") else ["test_*.py"]
