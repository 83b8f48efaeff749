"""The declaration."""

from emsworker.extending.declaration import Command, Extension, Measure

EXTENSION = Extension(
    "flows",
    __package__,
    rights="emsworker.flows.rights:RIGHTS",
    commands={
        "flows": Command(
            "emsworker.flows.operating.commands:flows", "List, show, cancel, retry, signal and delete flows."
        ),
    },
    services="emsworker.flows.operating.services:services",
    pages="emsworker.flows.operating.pages:pages",
    search="emsworker.flows.operating.pages:search",
    checks="emsworker.flows.operating.counts:checks",
    metrics="emsworker.flows.operating.counts:metrics",
    measures={
        "flow_age": Measure(
            "emsworker.flows.operating.counts:measure_age",
            "age of the oldest flow of a function that has not ended; --group names the function",
        )
    },
    topics=("ems.flow-events",),  # events.py
    needs_server="emsworker.flows.operating.counts:name_open",
    follow="emsworker.flows.store.following:follow",
    follow_in_memory="emsworker.flows.memory:follow",
    tasks={
        "ems.canvas": "emsworker.flows.canvas.task:make",
        "ems.flow_end": "emsworker.flows.store.far_ends:make",
        "ems.starmap": "emsworker.flows.canvas.maps:make",
    },
)
