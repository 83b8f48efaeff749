"""The declaration."""

from emsworker.extending.declaration import Extension

EXTENSION = Extension(
    "flows",
    __package__,
    rights="emsworker.flows.rights:RIGHTS",
    services="emsworker.flows.services:services",
    follow="emsworker.flows.store:follow",
    follow_in_memory="emsworker.flows.memory:follow",
    tasks={"ems.canvas": "emsworker.flows.canvas_task:make", "ems.starmap": "emsworker.flows.maps:make"},
)
