"""Flows: functions of many steps that end once, however often their processes die.

A flow is rows in the database of its stream. What moves it is committed with the ack that caused it, so a flow is
recovered as every message is: by any worker, when the lease of the one that ran it is over.
"""

from emsworker.flows.canvas.words import Canvas, chain, chord, chunks, group
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

__all__ = [
    "AsyncFlow",
    "CallFailed",
    "Canvas",
    "Flow",
    "FlowCancelled",
    "FlowChanged",
    "FlowEnded",
    "FlowExists",
    "FlowFailed",
    "FlowHandle",
    "SignalTimeout",
    "TooManySignals",
    "UnknownFlow",
    "chain",
    "chord",
    "chunks",
    "group",
]
