"""Parser of predicates; every error gives the position of the fault."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NoReturn

from emsworker.core.errors import InvalidName, PredicateError
from emsworker.core.ids import parse_uid, uid_text
from emsworker.core.options import is_whole
from emsworker.core.selection.predicate import All, Compare, Field, Like, Missing, Node, Not, OneOf, Predicate, Some

_MAX_CHARACTERS = 10_000
_MAX_DEPTH = 50
_MAX_DIGITS = 300
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign><=|>=|<>|!=|[=<>(),.\[\]]))"
)
_WORDS = frozenset({"and", "or", "not", "in", "like", "is", "null", "between", "true", "false"})
_LITERALS: dict[str, Any] = {"true": True, "false": False}
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WHOLE = frozenset({"partition", "offset", "size"})
_TEXT = frozenset({"key", "tag", "producer", "header"})
_FIELDS = ("id", "key", "tag", "partition", "offset", "size", "born_at", "producer", "header", "body")


@dataclass(frozen=True)
class Token:
    """Token of the text; ``kind`` is ``text``, ``number``, ``word``, ``sign`` or ``end``."""

    kind: str
    text: str
    position: int

    @property
    def said(self) -> str:
        """Text of the token for an error message."""
        return "the end" if self.kind == "end" else repr(self.text)


def parse_predicate(text: str) -> Predicate:
    """Parse a predicate, such as ``tag = 'new' and body.amount > 10``.

    Raises:
        PredicateError: not a predicate; the text says where and what was expected.
    """
    return Predicate(parse_node(text))


def parse_node(text: str) -> Node:
    """Parse a predicate into a node, to be part of a larger predicate.

    Raises:
        PredicateError: not a predicate; the text says where and what was expected.
    """
    return _Parser(text).parse()


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601; UTC if it names no zone.

    Raises:
        ValueError: not an ISO 8601 time.
    """
    when = datetime.fromisoformat(text)
    try:
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"{text!r} is out of range") from error


class _Parser:
    """Recursive-descent parser, with one method for each rule."""

    def __init__(self, text: str) -> None:
        self._text = text
        if len(text) > _MAX_CHARACTERS:
            raise PredicateError(text, 1, f"it has {len(text)} characters; at most {_MAX_CHARACTERS} are read")
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def _split(self) -> list[Token]:
        tokens, at = [], 0
        end = len(self._text.rstrip())
        while at < end:
            match = _TOKEN.match(self._text, at)
            if match is None:
                at += len(self._text[at:]) - len(self._text[at:].lstrip())
                quote = self._text[at] == "'"
                raise PredicateError(self._text, at + 1, "a text has no end" if quote else self._stray(at))
            kind = match.lastgroup or ""
            tokens.append(Token(kind, match[kind], match.start(kind) + 1))
            at = match.end()
        return [*tokens, Token("end", "", end + 1)]

    def _stray(self, at: int) -> str:
        hint = "; texts stand in single quotes" if self._text[at] == '"' else ""
        return f"nothing begins with {self._text[at]!r}{hint}"

    # -- tokens --------------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _is(self, word: str) -> bool:
        """Consume the next token if it is this keyword or sign, and return whether it was."""
        token = self._token
        if token.kind in ("word", "sign") and token.text.lower() == word:
            self._next += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._is(word):
            self._fail(self._token, f"{word!r} is expected, and not {self._token.said}")

    def _fail(self, token: Token, why: str) -> NoReturn:
        raise PredicateError(self._text, token.position, why)

    # -- rules ---------------------------------------------------------------------------------------------------------

    def parse(self) -> Node:
        """Parse the whole text."""
        found = self._either()
        if self._token.kind != "end":
            self._fail(self._token, f"'and', 'or' or the end is expected, and not {self._token.said}")
        return found

    def _either(self) -> Node:
        parts = [self._both()]
        while self._is("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Some(tuple(parts))

    def _both(self) -> Node:
        parts = [self._single()]
        while self._is("and"):
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _single(self) -> Node:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            self._fail(self._token, f"it is nested more than {_MAX_DEPTH} deep")
        try:
            if self._is("not"):
                return Not(self._single())
            if self._is("("):
                found = self._either()
                self._need(")")
                return found
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Node:
        field = self._field()
        if self._token.kind == "sign" and self._token.text in _COMPARISONS:
            op = _COMPARISONS[self._take().text]
            return Compare(field, op, self._value(field, ordered=op not in ("=", "<>")))
        if self._is("is"):
            negated = self._is("not")
            self._need("null")
            return Not(Missing(field)) if negated else Missing(field)
        negated = self._is("not")
        found = self._membership(field)
        return Not(found) if negated else found

    def _membership(self, field: Field) -> Node:
        token = self._token
        if self._is("in"):
            self._need("(")
            values = [self._value(field)]
            while self._is(","):
                values.append(self._value(field))
            self._need(")")
            return OneOf(field, tuple(values))
        if self._is("between"):
            low = self._value(field, ordered=True)
            self._need("and")
            return All((Compare(field, ">=", low), Compare(field, "<=", self._value(field, ordered=True))))
        if not self._is("like"):
            self._fail(token, f"a comparison (= <> < <= > >= in like between is) is expected, and not {token.said}")
        if field.name not in _TEXT | {"body"}:
            self._fail(token, f"{field.name} is no text, and has no pattern")
        pattern = self._token
        if pattern.kind != "text":
            self._fail(pattern, f"a pattern like 'eu-%' is expected, and not {pattern.said}")
        return Like(field, str(self._value(field)))

    def _field(self) -> Field:
        token = self._take()
        name = token.text.lower()
        if token.kind != "word" or name in _WORDS:
            self._fail(token, f"a field is expected, and not {token.said}")
        if name not in _FIELDS:
            self._fail(token, f"there is no field {token.text!r}; there are {', '.join(_FIELDS)}")
        if name == "header":
            self._need("(")
            header = self._take()
            if header.kind != "text":
                self._fail(header, f"the header's name in quotes is expected, and not {header.said}")
            self._need(")")
            return Field(name, (_unquoted(header.text),))
        return Field(name, self._path() if name == "body" else ())

    def _path(self) -> tuple[str | int, ...]:
        steps: list[str | int] = []
        while True:
            if self._is("."):
                token = self._take()
                if token.kind != "word":
                    self._fail(token, f"a name is expected after the dot, and not {token.said}")
                steps.append(token.text)
            elif self._is("["):
                steps.append(self._index())
                self._need("]")
            else:
                return tuple(steps)

    def _index(self) -> str | int:
        token = self._take()
        if token.kind == "text":
            return _unquoted(token.text)
        if token.kind != "number" or not re.fullmatch(r"-?\d+", token.text):
            self._fail(token, f"an index or a name in quotes is expected, and not {token.said}")
        return int(self._short(token))

    # -- values --------------------------------------------------------------------------------------------------------

    def _value(self, field: Field, ordered: bool = False) -> Any:
        token = self._take()
        word = token.text.lower()
        if token.kind == "word" and word == "null":
            self._fail(token, f"nothing equals null; write '{field.name} is null'")
        if token.kind == "word" and word in _LITERALS:
            value = _LITERALS[word]
        elif token.kind == "text":
            value = _unquoted(token.text)
        elif token.kind == "number":
            value = _number(self._short(token))
        else:
            self._fail(token, f"a value is expected ('text', 1.5, true, false), and not {token.said}")
        if ordered and isinstance(value, bool):
            self._fail(token, "true and false have no order")
        return self._fitting(field, token, value)

    def _short(self, token: Token) -> str:
        if len(token.text) > _MAX_DIGITS:
            self._fail(token, f"a number of at most {_MAX_DIGITS} digits is expected")
        return token.text

    def _fitting(self, field: Field, token: Token, value: Any) -> Any:
        """Convert a value to the type of the field's values."""
        wanted, make = _expected(field)
        try:
            return make(value)
        except (ValueError, TypeError, InvalidName):
            self._fail(token, f"{field.name} is compared with {wanted}, and not with {token.said}")


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'")


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _expected(field: Field) -> tuple[str, Callable[[Any], Any]]:
    if field.name in _WHOLE:
        return "a whole number", _whole
    if field.name in _TEXT:
        return "a text", _text
    if field.name == "born_at":
        return "a time like '2026-01-31T12:00' (UTC)", lambda value: parse_time(_text(value))
    if field.name == "id":
        return "a message id", lambda value: uid_text(parse_uid(_text(value)))
    return "a value", lambda value: value


def _whole(value: Any) -> int:
    if not is_whole(value):
        raise TypeError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode(errors="surrogateescape")
    return value
