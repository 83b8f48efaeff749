"""Errors of flows."""

from __future__ import annotations

from emsworker import EmsError, UnknownName


class FlowChanged(EmsError):
    """The code of a flow no longer asks for the steps that were recorded; nothing was run."""


class FlowExists(EmsError):
    """A flow with this id was started with another function or other arguments."""


class UnknownFlow(UnknownName):
    """There is no flow with this id."""


class FlowEnded(EmsError):
    """The flow has ended, so it takes no signal and cannot be cancelled."""


class TooManySignals(EmsError):
    """The flow has too many signals that it has not taken, or too large ones; this one was not given."""


class FlowFailed(EmsError):
    """The flow has failed.

    Args:
        id: of the flow.
        error_type, message: type and text of the error that ended it.
    """

    def __init__(self, id: str, error_type: str, message: str) -> None:
        self.id, self.error_type, self.message = id, error_type, message
        super().__init__(f"flow {id!r} failed: {error_type}: {message}")


class FlowCancelled(EmsError):
    """The flow was cancelled."""


class FlowTimeout(EmsError, TimeoutError):
    """The flow was not done before its deadline."""


class SignalTimeout(EmsError, TimeoutError):
    """A signal did not come in time."""


class StepFailed(EmsError):
    """A step that failed in an earlier run, after which the flow went on.

    Args:
        step: its name.
        error_type, message: type and text of its error.
    """

    def __init__(self, step: str, error_type: str, message: str) -> None:
        self.step, self.error_type, self.message = step, error_type, message
        super().__init__(f"{step} failed: {error_type}: {message}")


class CallFailed(StepFailed):
    """A call has failed for good: its attempts are used up, or it was rejected, cancelled or lost.

    Args:
        place: number of the step, and of the call within it.
    """

    def __init__(self, step: str, error_type: str, message: str, place: tuple[int, int]) -> None:
        super().__init__(step, error_type, message)
        self.place = place


class FlowLost(EmsError):
    """Another run of the flow has begun since, or it has ended; nothing more of this one is kept."""
