"""The time that one text of a publisher takes grows with its length, not with its square."""

from collections.abc import Callable
from typing import Any

import pytest

from emsworker import Filter
from emsworker.core.errors import error_line
from emsworker.core.offsets import OffsetRange
from emsworker.core.selection.bounds import Bounds
from emsworker.core.terminal_text import escape_all_control
from emsworker.core.url import redact, redact_url
from emsworker.store.groups import progress
from emsworker.store.stream import broadcast, search
from tests.support.machine import machine_s
from tests.support.streams import Stream, failed, flush_of, offsets

_BYTES = 2 << 20  # MariaDB took a minute for REPLACE() in such headers, and hours at 16 MB
_LIMIT_S = 15.0
_HEADERS = {
    "brackets": b"[" * _BYTES,
    "braces in a text": b'{"region":"' + b"{" * _BYTES + b'"}',
    "objects": b'{"a":' * (_BYTES // 5),
    "keys": b"{" + b",".join(b'"%d":""' % number for number in range(_BYTES // 10)) + b"}",
    "escapes": b'{"region":"' + b"\\u0065" * (_BYTES // 6) + b'"}',
    "no text": b"\xff" * _BYTES,
}


@pytest.mark.parametrize("headers", _HEADERS.values(), ids=_HEADERS)
def test_headers_of_any_form_cost_the_server_no_minutes(stream: Stream, headers: bytes) -> None:
    app, topic = stream.app(), stream.topic()
    app.send_many("t", [1, 2, 3], headers={"region": "eu"})
    stream.rows("UPDATE ems_message SET headers = %s WHERE `offset` = 2", headers)
    wanted = Filter(headers={"region": "eu"})
    every = OffsetRange(topic.id, 0, 1, 4)
    began = machine_s()
    assert [one.offset for one in search.list_messages(stream.session, every, Bounds(), wanted, 1 << 16)] == [1, 3]
    assert [one.offset for one in search.list_wanted(stream.session, every, wanted)] == [1, 3]
    group, other, me = stream.group(topic, filter=wanted), stream.group(topic, "other"), stream.client()
    assert offsets(stream.take(topic, group, me)) == [1, 3]
    claim = stream.take(topic, other, me)
    progress.flush(stream.session, flush_of(claim, topic, 3, failures=[failed(2, dead="no")]))
    assert stream.rows("SELECT `offset`, task FROM ems_dead") == [(2, "")]
    stream.expire(me)
    assert len(stream.recover()) == 1
    assert [row[0] for row in broadcast.read(stream.session, topic, 0, 1, 9, 1 << 30, wanted).rows] == [1, 3]
    assert machine_s() - began < _LIMIT_S


_SIGNS = ["://a:", "://", "://a:@", "://:***@", "?password=", ":", "\n", "a.", "  | ", '  File "\n', "\u202e", "'"]


@pytest.mark.parametrize("sign", _SIGNS)
@pytest.mark.parametrize("function", [redact, redact_url, error_line, escape_all_control])
def test_errors_that_quote_a_text_cost_a_worker_no_minutes(function: Callable[[str], Any], sign: str) -> None:
    """A handler's error may hold all of a body, and what is stored and logged of it has gone through these."""
    began = machine_s()
    function(sign * (_BYTES // 4 // len(sign)))
    assert machine_s() - began < _LIMIT_S
