"""The ``ems`` commands."""
