"""The declaration."""

from emsworker.extending.declaration import Command, Extension, Measure

EXTENSION = Extension(
    "flows",
    __package__,
    rights="emsworker.flows.rights:RIGHTS",
    commands={
        "flows": Command("emsworker.flows.commands:flows", "List, show, cancel, retry, signal and delete flows."),
    },
    services="emsworker.flows.services:services",
    pages="emsworker.flows.pages:pages",
    search="emsworker.flows.pages:search",
    checks="emsworker.flows.counts:checks",
    metrics="emsworker.flows.counts:metrics",
    measures={
        "flow_age": Measure(
            "emsworker.flows.counts:measure_age",
            "age of the oldest flow of a function that has not ended; --group names the function",
        )
    },
    topics=("ems.flow-events",),  # events.py
    needs_server="emsworker.flows.counts:name_open",
    follow="emsworker.flows.following:follow",
    follow_in_memory="emsworker.flows.memory:follow",
    tasks={
        "ems.canvas": "emsworker.flows.canvas_task:make",
        "ems.flow_end": "emsworker.flows.far_ends:make",
        "ems.starmap": "emsworker.flows.maps:make",
    },
)
