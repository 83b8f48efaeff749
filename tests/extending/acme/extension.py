"""The declaration."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "acme",
    __package__,
    rights="acme.rights:RIGHTS",
    commands={"notes": Command("acme.commands:notes", "Leave notes on topics, and list them.")},
    services="acme.services:services",
    pages="acme.pages:pages",
    checks="acme.checks:checks",
    metrics="acme.metrics:metrics",
)
