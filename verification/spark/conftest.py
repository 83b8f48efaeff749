"""Fixtures of the tests on a cluster. They run by ``./dev verify``, with the packages of .venv-spark."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.conftest import profile, profiles, stream
from verification.spark.cluster import Cluster, standalone

__all__ = ["profile", "profiles", "stream"]

collect_ignore_glob = [] if os.environ.get("EMS_TEST_SPARK") else ["test_*.py"]


@pytest.fixture(scope="session")
def cluster(profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, for all tests: each application has executors of its own."""
    with standalone(tmp_path_factory.mktemp("cluster"), profiles) as made:
        yield made
