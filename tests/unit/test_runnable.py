"""The base class of all loops: it outlasts the trouble of a server, and nothing else."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from collections.abc import Sequence

import pytest

from emsworker.core import errors
from emsworker.core.errors import (
    AccessDenied,
    AssertionBroken,
    ConfigError,
    Conflict,
    ConnectionLost,
    Duplicate,
    MessageTooLarge,
    SchemaMissing,
    StoreError,
    StoreUnavailable,
)
from emsworker.core.process.runnable import Runnable
from emsworker.store.engine import errors as engine


class Loop(Runnable):
    """Raises what it is given, one a step, and stops then."""

    action = "count"
    away_s = 0.0

    def __init__(self, raised: Sequence[Exception], at_end: Exception | None = None) -> None:
        self.died: list[BaseException] = []
        super().__init__("ems-loop", lambda name, error: self.died.append(error))
        self._raised, self._at_end = list(raised), at_end

    def step(self) -> None:
        if not self._raised:
            self.stop()
            return
        raise self._raised.pop(0)

    def shut_down(self) -> None:
        if self._at_end is not None:
            raise self._at_end

    def end(self) -> list[BaseException]:
        self.start()
        self.join(10)
        assert not self.is_alive()
        return self.died


def test_a_loop_outlasts_whatever_a_server_does(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop(
        [ConnectionLost("gone"), Conflict("x"), Conflict("y"), Duplicate("z"), AccessDenied("no"), AssertionBroken("a")]
    )
    assert loop.end() == [] and loop.trouble.error is None
    lines = [record.getMessage() for record in caplog.records if record.name == __name__]
    assert lines[:2] == ["cannot count: gone", "cannot count: x"]
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("error", [ZeroDivisionError(), SchemaMissing("gone")])
def test_it_dies_of_a_fault_and_of_tables_that_are_gone(error: Exception) -> None:
    loop = Loop([Conflict("x"), error, Conflict("never raised")])
    assert loop.end() == [error] and len(loop._raised) == 1


def test_a_loop_may_outlast_more(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Loop):
        outlasts = (Exception,)

    assert Stubborn([ZeroDivisionError("of a kind that is not known"), SchemaMissing("x")]).end() == []
    assert [bool(one.exc_info) for one in caplog.records if one.name == __name__] == [True, False]


def test_what_fails_at_its_end_is_no_death(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert Loop([], at_end=ConnectionLost("gone")).end() == Loop([], at_end=SchemaMissing("no table")).end() == []
    assert "thread ems-loop has ended without cleaning up: gone" in caplog.text
    fault = ZeroDivisionError()
    assert Loop([], at_end=fault).end() == [fault]


def test_every_error_of_the_store_has_the_one_base() -> None:
    raised = [getattr(errors, name) for name in re.findall(r"return (\w+)\(", inspect.getsource(engine.translate))]
    assert {ConnectionLost, Conflict, Duplicate, AssertionBroken} <= set(raised)
    # Tables that are gone are another stream, and a wrong address is the user's: no loop goes on after these.
    outlived = set(raised) - {SchemaMissing, ConfigError, MessageTooLarge}
    assert all(issubclass(one, StoreError) for one in {*outlived, StoreUnavailable, *errors.REFUSED}), outlived


def test_a_loop_waits_before_it_tries_again_and_stops_at_once() -> None:
    tried = threading.Event()

    class Away(Loop):
        away_s = 60.0

        def on_trouble(self, error: Exception) -> None:
            tried.set()
            super().on_trouble(error)

    loop = Away([Conflict("x"), Conflict("never raised")])
    loop.start()
    assert tried.wait(10)
    loop.stop()
    loop.join(10)
    assert not loop.is_alive() and loop.died == [] and len(loop._raised) == 1
