"""The cluster of the tests of clusters."""

from tests.cluster.conftest import group, on_group

__all__ = ["group", "on_group"]
