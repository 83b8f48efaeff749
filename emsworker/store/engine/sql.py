"""SQL text as a type of its own, and all that makes it: named statements, literals, and a few ways to compose them.

:data:`Sql` is a ``str`` for which every f-string, ``+``, ``%``, ``format`` and ``replace`` gives a plain ``str`` again,
which sessions and packets do not accept: the type checker proves that no other text reaches the server. Only this
module makes it, from the package's own files, from escaped values, and from numbers.

Statements are kept in a ``.sql`` file beside the module that uses them (the idea is Procrastinate's). A file is a
series of ``-- name: verb_noun`` lines, each followed by ``--`` lines that say what the statement is for and by one
statement with ``%(name)s`` parameters and no other ``%``. The row of an INSERT of many rows is named ``..._row``.
A list of columns that is made from a table of settings stands in it as ``{name}``.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from operator import itemgetter
from typing import Any, Literal, NewType, cast

from emsworker.core.errors import InvalidName

Sql = NewType("Sql", str)
Part = int | Sql
Args = Mapping[str, Any]
Separator = Literal[",", ", ", "\n", ";", ";\n", " UNION ALL "]

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)
_LIST = re.compile(r"\{\w+\}")
_PARAMETER = re.compile(r"%\((\w+)\)s")


class Statements:
    """The statements of one file, as attributes; by ``[name]`` if the name is computed.

    Args:
        module: the module beside which the file lies: its ``__name__``.
        lists: the lists of columns that stand in it as ``{name}``; constants of the code.

    Raises:
        ValueError: a list stands in it that is not given, or two statements have one name.
    """

    def __init__(self, module: str, **lists: str) -> None:
        package, _, name = module.rpartition(".")
        text = (files(package) / f"{name}.sql").read_text(encoding="utf-8")
        for mark, columns in lists.items():
            text = text.replace(f"{{{mark}}}", columns)
        if missing := _LIST.findall(text):
            raise ValueError(f"{name}.sql: no list is given for {', '.join(sorted(set(missing)))}")
        parts = _NAME.split(text)
        # As attributes of the object, which are found many times faster than by __getattr__.
        if len(parts[1::2]) > len({*parts[1::2]}):  # the last one would stand for both
            raise ValueError(f"{name}.sql: two statements have one name")
        vars(self).update({name: Sql(_strip(body)) for name, body in zip(parts[1::2], parts[2::2], strict=True)})

    def __getattr__(self, name: str) -> Sql:
        raise AttributeError(name)

    def __getitem__(self, name: str) -> Sql:
        return cast("Sql", vars(self)[name])

    def __contains__(self, name: str) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))


def read_script(file: Traversable) -> list[Sql]:
    """Return the statements of a migration."""
    return [Sql(statement) for statement in split_script(file.read_text(encoding="utf-8"))]


def split_script(text: str) -> list[str]:
    """Split a migration at every ``;`` at the end of a line."""
    return [part for part in (_strip(part) for part in re.split(r";\s*\n", text)) if part]


def _strip(body: str) -> str:
    lines = [line for line in body.splitlines() if line.strip() and not line.startswith("--")]
    return "\n".join(lines).rstrip(";")


# -- values ------------------------------------------------------------------------------------------------------------


def literal(value: Any) -> Sql:
    """Write a value as SQL that means the same under every sql_mode; a sequence becomes a list in parentheses.

    The driver's own escaping relies on an earlier sql_mode of the session, and a handler may have changed it since.

    Raises:
        InvalidName: a text has no UTF-8 form.
        TypeError: no column holds such a value.
    """
    return Sql(_literal(value))


def literals(values: Args) -> dict[str, Sql]:
    """Write each of some values as SQL; see :func:`literal`."""
    return cast("dict[str, Sql]", {name: _literal(value) for name, value in values.items()})


def column(values: Iterable[Any]) -> list[Sql]:
    """Write each of some values as SQL, for :func:`fill_rows`; see :func:`literal`."""
    return cast("list[Sql]", [_literal(value) for value in values])


def message_blobs(columns: tuple[Any, ...], producer_id: str | None = None, *, sized: bool = False) -> Sql:
    """Write a message as hexadecimal literals with commas between: written out, it takes a third of a loop's time.

    Args:
        columns: the values of :data:`MESSAGE_COLUMNS`.
        producer_id: follows them, if it is given.
        sized: the size of the body follows.
    """
    uid, key, tag, headers, body = columns
    text = f"X'{uid.hex()}',{_blob(key)},{_blob(tag)},X'{headers.hex()}',X'{body.hex()}'"
    if producer_id is not None:
        text = f"{text},X'{producer_id.encode().hex()}'"
    return Sql(f"{text},{len(body)}" if sized else text)


def _blob(value: bytes | None) -> str:
    return "NULL" if value is None else f"X'{value.hex()}'"


@functools.lru_cache(256)
def identifier(name: str) -> Sql:
    """Quote the name of a database, a table or a column."""
    return Sql(f"`{name.replace('`', '``')}`")


def _literal(value: Any) -> str:
    if type(value) is int:  # the most frequent
        return str(value)
    if isinstance(value, bytes):
        return _blob(value)
    if isinstance(value, str):
        return _text_literal(value)
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float) and math.isfinite(value):
        return repr(float(value))
    if isinstance(value, datetime):
        return f"'{value.isoformat(' ')}'"
    if isinstance(value, list | tuple):
        return f"({','.join([_literal(one) for one in value])})"
    raise TypeError(f"{value!r} cannot be written as SQL")


def _text_literal(text: str) -> str:
    if text.isascii() and "'" not in text and "\\" not in text:
        return f"'{text}'"
    try:
        return f"_utf8mb4 X'{text.encode().hex()}'"
    except UnicodeEncodeError:
        raise InvalidName(f"{text!r} has no UTF-8 form; use valid text") from None


# -- composition -------------------------------------------------------------------------------------------------------


def fill(statement: Sql, parts: Mapping[str, Part]) -> Sql:
    """Replace the parameters of a statement by numbers and SQL."""
    pattern, _, pick = by_position(statement)
    return Sql(pattern % pick(parts))


@functools.lru_cache(256)
def nest(statement: Sql, name: str, inner: Sql) -> Sql:
    """Replace one parameter of a statement by other SQL, whose parameters become the statement's own."""
    return Sql(statement.replace(f"%({name})s", inner))


def fill_rows(row: Sql, common: Mapping[str, Part], columns: Mapping[str, Sequence[Part]]) -> list[Sql]:
    """Return many rows of a template, faster than by :func:`fill`.

    Args:
        common: the parts that are equal in all rows; without ``%``.
        columns: for each of the other parameters the parts, one for each row.
    """
    pattern, names, pick = by_position(row)
    if common:
        pattern = pattern % pick({**common, **dict.fromkeys(columns, "%s")})
    parts = [columns[name] for name in names if name in columns]
    if len(parts) == 2:  # as in sending, whose cost is counted in microseconds; an f-string takes half the time of %
        before, between, after = pattern.split("%s")
        return cast("list[Sql]", [f"{before}{a}{between}{b}{after}" for a, b in zip(*parts, strict=True)])
    return cast("list[Sql]", [pattern % one for one in zip(*parts, strict=True)])


@functools.lru_cache(4096)
def by_position(statement: Sql) -> tuple[str, tuple[str, ...], Callable[[Mapping[str, Any]], Any]]:
    """Return a statement with ``%s`` for its parameters, their names, and what picks their values in that order."""
    names = tuple(_PARAMETER.findall(statement))
    return _PARAMETER.sub("%s", statement), names, itemgetter(*names) if names else lambda parts: ()


def join(separator: Separator, parts: Iterable[Sql]) -> Sql:
    """Join parts by one of the fixed separators."""
    return Sql(separator.join(parts))


def insertion(head: Sql, rows: Iterable[Sql], end: Sql | None = None) -> Sql:
    """Return the INSERT of some rows: ``INSERT ... VALUES``, the rows, and perhaps ``ON DUPLICATE KEY ...``."""
    return Sql(f"{head} {','.join(rows)} {end or ''}")
