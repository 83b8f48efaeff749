"""From which step a flow is run again."""

import pytest

from emsworker import Ems
from emsworker.core.errors import WrongArguments
from emsworker.flows import FlowFailed
from emsworker.flows.retrying import first_step
from emsworker.flows.rows import CALL, STEP, UNDO, UNDONE, StepRow

_STEPS = [StepRow(1, STEP, "charge"), StepRow(2, UNDO, "refund"), StepRow(3, STEP, "charge"), StepRow(5, CALL, "pack")]


def test_a_step_is_named_by_its_number_or_its_name() -> None:
    assert first_step("f", _STEPS, None) is None
    assert first_step("f", _STEPS, "charge") == 1
    assert first_step("f", _STEPS, "3") == first_step("f", _STEPS, 3) == 3
    for wrong in ("4", 0, "refunds"):
        with pytest.raises(WrongArguments, match="it has recorded charge, refund, pack"):
            first_step("f", _STEPS, wrong)


def test_a_flow_whose_steps_were_undone_does_not_run_from_one() -> None:
    undone = [*_STEPS, StepRow(6, UNDONE, "undo 2: refund")]
    with pytest.raises(WrongArguments, match="were undone"):
        first_step("f", undone, 1)
    called = [*_STEPS, StepRow(6, CALL, "undo 2: refund")]  # a task of this name, and nothing undone
    assert first_step("f", called, 1) == 1


def test_a_handle_runs_a_flow_again_from_a_step() -> None:
    app = Ems("again")
    done: list[str] = []

    @app.flow(name="f", max_attempts=1)
    def f(flow):  # type: ignore[no-untyped-def]
        flow.step(done.append, "first")
        flow.step(done.append, "second")
        if len(done) in (2, 3):
            raise ValueError("not yet")

    with app.test() as test:
        one = f.start(id="one")
        test.run()
        with pytest.raises(FlowFailed, match="not yet"):
            one.get()
        assert one.retry(from_step=2)
        test.run()
        assert done == ["first", "second", "second"] and one.state == "failed"
        assert one.retry(from_step="append")
        test.run()
        assert one.get() is None and done == ["first", "second", "second", "first", "second"]
