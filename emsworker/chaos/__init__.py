"""Test that nothing is lost: a history of sends and runs, a checker of it, and fault injection.

The method is Jepsen's: clients record their requests and the answers, faults hit the system meanwhile, and at the end
a checker that shares no code with the system compares the histories with the contents of the stream.

    app = Ems("shop", middleware=[Recorder("history")])

`ems chaos break` injects the faults, `ems chaos check` compares.
"""

from emsworker.chaos.checker import check, check_stream
from emsworker.chaos.history import Deed, Fault, History, Operation, Recorder, Run, Sent, note_operation, read_history
from emsworker.chaos.report import Finding, Kind, Report, Rules
from emsworker.chaos.window import Effects, Window

__all__ = [
    "Deed",
    "Effects",
    "Fault",
    "Finding",
    "History",
    "Kind",
    "Operation",
    "Recorder",
    "Report",
    "Rules",
    "Run",
    "Sent",
    "Window",
    "check",
    "check_stream",
    "note_operation",
    "read_history",
]
