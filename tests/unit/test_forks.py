"""What a forked child finds: free locks, called methods, and connections that are closed without a word."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from emsworker.core.process import forks, wake
from emsworker.core.process.forks import lazy
from emsworker.core.process.wake import Wake
from emsworker.store.engine.connection import Connection
from tests.support.interruptions import Cut, Timeout


def in_a_child(look: Callable[[], bool]) -> bool:
    """Whether ``look`` is true in a forked child, within five seconds."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(5)
        code = 1
        try:
            code = 0 if look() else 1
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] == 0


def holding(lock: Any) -> Callable[[], None]:
    """Have another thread hold a lock; returns what makes it let go."""
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)

    def let_go() -> None:
        go.set()
        thread.join()

    return let_go


def test_a_lock_that_another_thread_holds_is_free_in_a_child_and_held_in_the_parent() -> None:
    shared, event = forks.Lock(), forks.Event()
    for lock in (forks.Lock(), forks.Condition(), forks.Condition(shared), event._cond):  # type: ignore[attr-defined]
        let_go = holding(lock)
        assert in_a_child(lambda lock=lock: bool(lock.acquire(timeout=1)))
        assert not lock.acquire(blocking=False)
        let_go()


def _enter(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()


def _use(event: threading.Event) -> None:
    event.set()
    event.wait(0.001)
    event.clear()


def _wake(flag: Wake) -> None:
    flag.set()
    assert flag.wait(5)


_IN_C = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="Python leaves a threading.Lock taken, too, by an exception after __enter__"
)


@pytest.mark.parametrize(
    ("make", "use"),
    [
        pytest.param(forks.Condition, _enter, marks=_IN_C, id="condition"),
        pytest.param(lambda: forks.Condition(forks.Lock()), _enter, marks=_IN_C, id="of a lock"),
        pytest.param(forks.Event, _use, marks=_IN_C, id="event"),
        pytest.param(Wake, _wake, id="wake"),
    ],
)
def test_an_exception_from_outside_leaves_no_lock_taken(make: Callable[[], Any], use: Callable[[Any], None]) -> None:
    for number in range(100):
        one = make()
        with Cut(number, (threading.__file__, forks.__file__, wake.__file__, __file__)) as cut, suppress(Timeout):
            use(one)
        other = threading.Thread(target=use, args=(one,), daemon=True)
        other.start()
        other.join(10)
        assert not other.is_alive(), number
        if not cut.raised:
            break
    assert not cut.raised and number > 0


def test_methods_are_called_in_a_child_as_long_as_their_object_lives() -> None:
    class Owner:
        def __init__(self) -> None:
            self.called = 0
            forks.after_fork(self.note)

        def note(self) -> None:
            self.called += 1

    one, gone = Owner(), Owner()
    del gone
    assert in_a_child(lambda: one.called == 1) and one.called == 0


def test_a_child_closes_a_connection_that_a_thread_reads_from_at_once_and_the_parent_reads_on() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection.__new__(Connection)
    connection._sock, connection._rfile = ours, ours.makefile("rb")
    forks.after_fork(connection._leave_to_parent)
    read: list[bytes] = []
    thread = threading.Thread(target=lambda: read.append(connection._rfile.read(4)))
    thread.start()
    assert in_a_child(lambda: connection._sock is None and connection.inherited)
    theirs.sendall(b"more")
    thread.join(10)
    assert read == [b"more"]
    theirs.close()
    connection._force_close()  # type: ignore[attr-defined]


def test_a_lazy_attribute_is_made_once() -> None:
    made: list[int] = []

    class Owner:
        @lazy
        def one(self) -> int:
            """It says so."""
            made.append(1)
            return len(made)

    owner = Owner()
    assert (owner.one, owner.one, Owner().one) == (1, 1, 2)
    assert Owner.one.__doc__ == "It says so."


def test_objects_that_outlive_their_program_say_nothing_when_it_ends() -> None:
    """An interpreter that ends by an exception clears modules in an order that callbacks of `WeakMethod` do not bear."""
    text = """
from emsworker.core.process import forks
class Owner:
    def __init__(self): forks.after_fork(self.reset)
    def reset(self): pass
kept = [Owner() for _ in range(3)]
def fail(one): raise SystemError(one)
fail(kept[0])
"""
    ran = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1 and "SystemError" in ran.stderr and "ignored" not in ran.stderr, ran.stderr
