"""Proof that nothing is lost: a history of what was sent and run, a checker of it, and faults to bring about.

The method is Jepsen's: clients write down what they asked for and what they were told, something breaks the system
meanwhile, and at the end a checker that knows nothing of the system's code compares the histories with what is there.

    app = Ems("shop", middleware=[Recorder("history")])

`ems chaos break` brings about the faults, `ems chaos check` compares.
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
