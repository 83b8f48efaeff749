"""Alarms. Their tables are those of the core: rules move with topics, and lists of groups show what fires."""

from emsworker.extending.declaration import Command, Extension

EXTENSION = Extension(
    "alarms",
    __package__,
    commands={
        "alarms": Command(
            "emsworker.alarms.commands:alarms", "Create, list, test, silence and delete the rules of alarms."
        )
    },
    services="emsworker.alarms.services:services",
)
