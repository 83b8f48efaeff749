"""Checks of ``ems check``."""

from acme.notes import count_late

from emsworker.extending.administration import Finding, Severity


def check_sweeps(session, settings):
    """Find notes that no beat deletes."""
    if late := count_late(session, 3600):
        yield Finding(Severity.WARNING, "acme_note", f"{late} expired", "run a beat, which deletes them")


def checks():
    return [check_sweeps]
