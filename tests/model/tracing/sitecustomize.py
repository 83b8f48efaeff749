"""On the path of a worker's processes: their connections tell the server's triggers which transaction it is that they see.

A trigger cannot know by itself. The mark is set before whatever is sent outside of a transaction.
"""

from typing import Any

from emsworker.store import recovery, session

_send = session.Session.send
_recover_one = recovery._recover_one
_MARK = "SET @trace_tx = UUID_SHORT(), @trace_what = ''"


def _marked(self: session.Session, sql: str) -> list[session.Result]:
    goes_on = self.in_transaction and self._open().opening is None
    return _send(self, sql) if goes_on else _send(self, f"{_MARK};\n{sql}")[1:]


def _recovering(*args: Any) -> Any:
    work = _recover_one(*args)

    def marked(session: session.Session) -> Any:
        _send(session, "SET @trace_what = 'recover'")
        return work(session)

    return marked


session.Session.send = _marked  # type: ignore[method-assign]
recovery._recover_one = _recovering
