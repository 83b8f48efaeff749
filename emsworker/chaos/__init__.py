"""Test that nothing is lost: a history of sends and runs, a checker of it, and fault injection.

The method is Jepsen's: clients record their requests and the answers, faults hit the system meanwhile, and at the end
a checker that shares no code with the system compares the histories with the contents of the stream.

    app = Ems("shop", middleware=[Recorder("history")])

`ems chaos break` injects the faults, `ems chaos check` compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from emsworker.extending.declaration import lazy_names

if TYPE_CHECKING:
    from emsworker.chaos.checker import check, check_stream
    from emsworker.chaos.history import (
        Deed,
        Fault,
        HandlerRun,
        History,
        Operation,
        Recorder,
        Sent,
        ToldState,
        note_answer,
        note_operation,
        read_history,
    )
    from emsworker.chaos.report import ChaosReport, Kind, Rules, Violation
    from emsworker.chaos.window import CheckWindow, Effects

__all__ = [
    "ChaosReport",
    "CheckWindow",
    "Deed",
    "Effects",
    "Fault",
    "HandlerRun",
    "History",
    "Kind",
    "Operation",
    "Recorder",
    "Rules",
    "Sent",
    "ToldState",
    "Violation",
    "check",
    "check_stream",
    "note_answer",
    "note_operation",
    "read_history",
]

__getattr__ = lazy_names(
    __name__,
    {
        "emsworker.chaos.checker": "check check_stream",
        "emsworker.chaos.history": "ToldState Deed Fault HandlerRun History Operation Recorder Sent "
        "note_answer note_operation read_history",
        "emsworker.chaos.report": "ChaosReport Kind Rules Violation",
        "emsworker.chaos.window": "CheckWindow Effects",
    },
)
