"""Flows: functions of many steps that end once, however often their processes die.

A flow is rows in the database of its stream. What moves it is committed with the ack that caused it, so a flow is
recovered as every message is: by any worker, when the lease of the one that ran it is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.flows.canvas.words import Canvas, Part, chain, chord, chunks, group
    from emsworker.flows.errors import (
        CallFailed,
        FlowCancelled,
        FlowChanged,
        FlowEnded,
        FlowExists,
        FlowFailed,
        SignalTimeout,
        TooManySignals,
        UnknownFlow,
    )
    from emsworker.flows.flow import AsyncFlow, Flow
    from emsworker.flows.handle import FlowHandle
    from emsworker.flows.task import FlowDecorator, FlowTask

__all__ = [
    "AsyncFlow",
    "CallFailed",
    "Canvas",
    "Flow",
    "FlowCancelled",
    "FlowChanged",
    "FlowDecorator",
    "FlowEnded",
    "FlowExists",
    "FlowFailed",
    "FlowHandle",
    "FlowTask",
    "Part",
    "SignalTimeout",
    "TooManySignals",
    "UnknownFlow",
    "chain",
    "chord",
    "chunks",
    "group",
]

# Lazily: every command reads the declaration of this extension, which imports this package.
__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.flows.canvas.words": "Canvas Part chain chord chunks group",
        "emsworker.flows.errors": "CallFailed FlowCancelled FlowChanged FlowEnded FlowExists FlowFailed SignalTimeout "
        "TooManySignals UnknownFlow",
        "emsworker.flows.flow": "AsyncFlow Flow",
        "emsworker.flows.handle": "FlowHandle",
        "emsworker.flows.task": "FlowDecorator FlowTask",
    },
)
