"""Management commands: ``ems``, ``ems_migrate`` and ``ems_worker``."""
