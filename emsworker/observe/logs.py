"""Formats of log records: one line of text each, or one JSON object each.

Records that a handler logs carry the fields of the message that it runs: its topic, partition, offset, id, task, group,
attempt and trace.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from emsworker.consume.attempts import MESSAGE_FIELDS, running_fields
from emsworker.core.errors import repr_of
from emsworker.core.terminal_text import escape_control, in_utf8, shortened
from emsworker.core.url import redact
from emsworker.observe.log_stream import LogStream
from emsworker.observe.repeats import REPEATS, RepeatHandler

_MOST_CHARACTERS = 64 << 10  # of a record
_TEXT_CHARACTERS = (_MOST_CHARACTERS, 8 << 10, 1 << 10, 64)  # of a text in it, until the record is short enough
_INDENT = "\n  "
TEXT_FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(threadName)s %(name)s: %(message)s"
LOG_FORMATS = ("text", "json")

_OF_EVERY_RECORD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(level: str, form: str = "text", repeats: int = REPEATS) -> None:
    """Send log records to standard error, unless the program has configured logging already.

    Args:
        level: the least important level that is logged, by its name.
        form: one of :data:`LOG_FORMATS`.
        repeats: see :class:`RepeatHandler`.
    """
    handler = RepeatHandler(LogStream(sys.stderr), repeats)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    if form == "json":
        logging.captureWarnings(True)


class TextFormatter(logging.Formatter):
    """Formats a record as text for people, without characters that would control a terminal.

    A task's name, or an error of a handler, may quote what somebody sent. So further lines of a record are indented:
    none of them can look like a record of its own. What is longer than 64 KiB loses its middle.

    What a handler logs begins with its task, the message's id and the attempt, unless the record names a task itself.
    Passwords in URLs are hidden, whoever logs them.
    """

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        """Return the text, with its traceback on further lines."""
        text = escape_control(redact(shortened(super().format(record), _MOST_CHARACTERS)))
        return shortened(text, _MOST_CHARACTERS).replace("\n", _INDENT)

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the first part of the text, with the message that is run."""
        fields = {} if hasattr(record, "task") else running_fields()
        if fields:
            record.message = f"{_run_of(fields)} {record.message}"
        return super().formatMessage(record)


def _run_of(fields: Mapping[str, Any]) -> str:
    """Return in brackets what runs: a task, the id of its message and the attempt; of a batch, its offsets."""
    if "id" in fields:
        return f"[{fields['task']} {fields['id']} attempt {fields['attempt']}]"
    return f"[{fields['task']} {fields['topic']}/{fields['partition']}@{fields['offset']}-{fields['last_offset']}]"


class MessageFields(logging.Filter):
    """Gives every record of a handler the fields of the message that is run; ``None`` for those that are not known.

    For programs that configure logging themselves: put it on the handler, and ``%(task)s`` into its format.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; every record passes."""
        fields = running_fields()
        for name in MESSAGE_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name))
        return True


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line.

    It has ``time`` (UTC), ``level``, ``logger``, ``message``, ``process``, ``thread``; the fields of the message that
    is run (see :class:`MessageFields`); whatever the caller gave as ``extra``; and a traceback as ``traceback``.
    ``details`` in ``extra`` is the end of a message that only people need, because the other fields say it too.
    An object of more than 64 KiB has shorter texts: they lose their middles. Passwords in URLs are hidden.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the JSON object."""
        more = {name: value for name, value in vars(record).items() if name not in _OF_EVERY_RECORD}
        details = more.pop("details", "")
        if trace := self._trace_of(record):
            more.setdefault("traceback", trace)
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage().removesuffix(details),
            "process": record.process,
            "thread": record.threadName,
        }
        for name, value in {**running_fields(), **more}.items():
            if value is not None:
                fields.setdefault(name, value)
        line = ""
        for most in _TEXT_CHARACTERS:
            line = json.dumps({_plain(name, most): _plain(value, most) for name, value in fields.items()})
            if len(line) <= _MOST_CHARACTERS:
                break
        return line

    def _trace_of(self, record: logging.LogRecord) -> str | None:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return "\n".join(filter(None, (record.exc_text, record.stack_info))) or None


def _plain(value: Any, most: int) -> Any:
    """Return a value that JSON has, or its text; texts in UTF-8, and of at most about ``most`` characters."""
    if isinstance(value, str):
        return in_utf8(redact(shortened(value, most)))
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()  # half a surrogate pair, which many readers of JSON refuse, raises a ValueError
    except BaseException:  # of a subclass of str or dict, too, whose methods are its author's
        return _plain(repr_of(value), most)
    return value if len(text) <= most else _plain(text, most)
