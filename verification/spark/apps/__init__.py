"""Programs of the tests of the cluster."""
