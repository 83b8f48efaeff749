"""Fault injection, and a checker that nothing was lost."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "chaos",
    __package__,
    commands={
        "chaos": Command("emsworker.chaos.commands:chaos", "Break workers on purpose, and check that nothing was lost.")
    },
)
