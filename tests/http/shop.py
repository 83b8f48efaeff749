"""The app whose tasks and flows are used by HTTP."""

from pathlib import Path
from typing import Any

from emsworker import Ems
from emsworker.flows import Flow
from tests.support.waiting import until

app = Ems("shop")


@app.task(name="add", result=True, bind=True)
def add(self: Any, a: int, b: int) -> int:
    self.request.report_progress(0.5, "half")
    return a + b


@app.task(name="slow", result=True, bind=True)
def slow(self: Any, gate: str) -> str:
    self.request.report_progress(0.25, "waits")
    until(lambda: Path(gate).exists(), 60, "the test opens the gate")
    return "done"


@app.task(name="refuse", result=True, max_attempts=1)
def refuse() -> None:
    raise ValueError("no")


@app.flow(name="order")
def order(flow: Flow) -> Any:
    flow.emit("began")
    return {"paid": flow.wait_for("paid", timeout="60s")}
