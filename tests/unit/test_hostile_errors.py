"""Errors whose own methods fail: an attempt that raises one has failed like any other, and nobody else notices."""

import json
import logging
from collections.abc import Callable
from typing import Any

import pytest

from emsworker import Ems, Middleware
from emsworker.consume.attempts import describe, one_line
from emsworker.core.errors import text_of
from emsworker.core.ladder import Dead, Ladder
from emsworker.observe.logs import JsonFormatter
from emsworker.tasks.options import HandlerOptions


def _raise(*_: object) -> Any:
    raise RuntimeError("not even this")


def _exit(*_: object) -> Any:
    raise SystemExit(3)


def _interrupt(*_: object) -> Any:
    raise KeyboardInterrupt


class StrFails(Exception):
    __str__ = _raise


class StrExits(Exception):
    __repr__ = __str__ = _exit


class StrInterrupts(Exception):
    __repr__ = __str__ = _interrupt


class NotesExit(Exception):
    __notes__: Any = property(_exit)


class ModuleExits(Exception):
    class Name:
        __repr__ = __str__ = _exit

    __module__: Any = Name()


class StrIsNone(Exception):
    def __str__(self) -> Any:
        return None


class ReprFails(Exception):
    __repr__ = __str__ = _raise


class NotesFail(Exception):
    @property
    def __notes__(self) -> Any:
        return _raise()


class NotesAreNone(Exception):
    __notes__: Any = (None, 5)


class TextIsHuge(Exception):
    def __str__(self) -> str:
        return "mysql://shop:secret@db/shop " * 200_000


class LinesFail(SyntaxError):
    text: Any = property(_raise)
    lineno: Any = property(_raise)
    msg: Any = property(_raise)


class EqFails(Exception):
    __eq__ = __hash__ = _raise


class GroupFails(ExceptionGroup[Exception]):
    __str__ = _raise


Homeless = type("Homeless", (Exception,), {"__module__": None})

HOSTILE: list[Callable[[], Exception]] = [
    *(
        StrFails,
        StrExits,
        StrInterrupts,
        NotesExit,
        ModuleExits,
        StrIsNone,
        ReprFails,
        NotesFail,
        NotesAreNone,
        TextIsHuge,
        LinesFail,
        EqFails,
        Homeless,
    ),
    lambda: GroupFails("many", [StrFails(), ReprFails()]),
]


@pytest.mark.parametrize("make", HOSTILE)
def test_any_error_can_be_told(make: Callable[[], Exception]) -> None:
    try:
        raise make()
    except Exception as error:
        for cause in (error, RuntimeError("around it")):
            if cause is not error:
                cause.__cause__ = error
            told = describe(cause)
            assert type(cause).__name__ in told and "secret" not in told and len(told) < 20_000
            assert one_line(cause).rpartition(".")[2].startswith(type(cause).__name__) or "Error" in one_line(cause)
            assert isinstance(text_of(cause), str)
            assert isinstance(HandlerOptions(on_error="dead").decide(Ladder.parse("1s", 2), 1, cause), Dead)


def test_what_is_logged_with_a_record_may_fail_in_any_way() -> None:
    record = logging.makeLogRecord({"msg": "m", "order": StrExits()})
    assert json.loads(JsonFormatter().format(record))["order"] == "<StrExits: repr() failed>"


def test_a_hook_that_exits_ends_nothing_else() -> None:
    class Exits(Middleware):
        def after_run(self, *what: Any) -> None:
            raise SystemExit(3)

    app, ran = Ems("hostile", middleware=[Exits()]), list[int]()

    @app.task(topic="t", group="g")
    def good(n: int) -> None:
        ran.append(n)

    with app.test() as test:
        good.delay(1)
        good.delay(2)
        test.run()
        assert ran == [1, 2] and not test.dead


@pytest.mark.parametrize("make", HOSTILE)
@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_task_that_raises_it_has_failed_and_its_neighbours_run_once(make: Callable[[], Exception], kind: str) -> None:
    app, ran = Ems("hostile"), list[int]()

    @app.task(topic="t", group="g", max_attempts=2, ladder="0s")
    def good(n: int) -> None:
        ran.append(n)

    if kind == "plain":

        @app.task(topic="t", group="g", max_attempts=2, ladder="0s", result=True)
        def bad() -> None:
            raise make()
    else:

        @app.task(topic="t", group="g", max_attempts=2, ladder="0s", result=True)
        async def bad() -> None:
            raise make()

    with app.test() as test:
        for n in range(3):
            good.delay(n)
            if n == 1:
                bad.delay()
        test.run()
        assert ran == [0, 1, 2]
        assert len(test.dead) == 1 and type(make()).__name__ in test.dead[0].error


def _raise(error: Exception) -> str:
    try:
        raise error
    except Exception as raised:
        return describe(raised)


def test_errors_are_described_by_where_they_were_raised() -> None:
    """A description is kept for the next equal error, but not for one that only looks like it."""
    first = _raise(ValueError("no"))
    assert _raise(ValueError("no")) == first and first.endswith("ValueError: no") and "raise error" in first
    assert _raise(ValueError("yes")).endswith("ValueError: yes")
    assert _raise(RuntimeError("no")).endswith("RuntimeError: no")
    noted = ValueError("no")
    noted.add_note("a note")
    assert _raise(noted).endswith("ValueError: no\na note")
    caused = ValueError("no")
    caused.__cause__ = KeyError("because")
    assert "KeyError: 'because'" in _raise(caused)
    elsewhere = ValueError("no")
    try:
        raise elsewhere
    except ValueError:
        assert "raise elsewhere" in describe(elsewhere)
