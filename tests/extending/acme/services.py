"""The services of the beat."""

from acme.notes import sweep

from emsworker.extending.declaration import pause_s


def sweep_notes(session, settings):
    """Delete notes that have expired."""
    return pause_s(sweep(session, 100), 100, settings)


def services(stream):
    return [sweep_notes]
