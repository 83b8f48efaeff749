"""The state that all processes share: clients and leases, schedules, alarms, idempotency keys."""
