"""On the path of a worker's processes: their connections tell the server's triggers which transaction it is that they see.

A trigger cannot know by itself. One place marks: whatever is sent outside of a transaction begins with a new mark. A
second place that opened a transaction unmarked would leave it with the mark of the one before, and two would look like
one.
"""

from contextvars import ContextVar
from typing import Any

from emsworker.beat import recovery
from emsworker.store.engine import session

_send = session.Session.send
_recover = recovery.recover
_what = ContextVar("what", default="")


def _marked(self: session.Session, sql: str) -> list[session.Result]:
    if self.in_transaction and not self._open().preamble:
        return _send(self, sql)
    mark = f"SET @trace_tx = UUID_SHORT(), @trace_what = '{_what.get()}'"
    return _send(self, f"{mark};\n{sql}")[1:]


def _recovering(*args: Any, **options: Any) -> Any:
    token = _what.set("recover")
    try:
        return _recover(*args, **options)
    finally:
        _what.reset(token)


session.Session.send = _marked  # type: ignore[method-assign]
recovery.recover = _recovering
