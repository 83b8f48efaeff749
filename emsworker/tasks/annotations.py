"""Arguments and results of a function by its annotations.

JSON has no datetimes, sets or models. Where an annotation names such a type, a value is plain JSON on its way, as
Pydantic writes it, and is built from that again where it is used. A sender builds it too, only to check it, so what was
sent can be built by every worker with the same types. Writing what is written already changes nothing: values of a
chain, or of a client in another language, are plain JSON from the start.

What has no annotation, or one of JSON's own types, is passed on untouched, and costs nothing.
"""

from __future__ import annotations

import inspect
import sys
from collections import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import Parameter, Signature
from types import NoneType, SimpleNamespace, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    ParamSpecArgs,
    ParamSpecKwargs,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)
from weakref import WeakKeyDictionary

from emsworker.core.errors import ConfigError, DecodeError, EncodeError, Problem, WrongArguments, text_of
from emsworker.core.extras import hint_if_missing, require
from emsworker.core.process.forks import fork_blocked

_EXTRA = "pydantic"
_RESULT = "return"
_MASK = b'"**********"'  # what Pydantic writes instead of a secret
_OWN = (Any, object, NoneType, bool, int, float, str)
_LISTS = (list, abc.Sequence, abc.MutableSequence)
_DICTS = (dict, abc.Mapping, abc.MutableMapping)
_NOT_SENT = (
    *(abc.Callable, abc.Iterable, abc.Iterator, abc.Generator, abc.AsyncIterable, abc.AsyncIterator),
    *(abc.AsyncGenerator, abc.Awaitable, abc.Coroutine, type, Unpack),
)


class _Unknown(str):
    """A class whose only object cannot be mistaken for a text of the user's."""


UNKNOWN: Final = _Unknown("unknown")
"""An argument whose value is not known yet, in the check of a call; it is passed on untouched."""


class _Misfit(ValueError):
    """A value does not fit its annotation; the text names both."""


class _JsonForm:
    """Writes the values of some names as plain JSON, and builds them from it.

    Args:
        types: by name.

    Raises:
        Exception: one of the types is none that Pydantic can build from JSON.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        with fork_blocked:
            pydantic, core, typing = map(import_module, ("pydantic", "pydantic_core", "typing_extensions"))
        self._types = types
        values: Any = typing.TypedDict("Values", dict(types), total=False)
        config = pydantic.ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
        adapter = pydantic.TypeAdapter(list[values], config=config)  # that of the dict alone would not be its fields'
        self._write = partial(adapter.serializer.to_python, mode="json", by_alias=True, round_trip=True, warnings=False)
        self._encode, self._build = partial(core.to_json, bytes_mode="base64"), adapter.validator.validate_json

    def dump(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values as plain JSON, from which they can be built.

        Raises:
            _Misfit: one is not of its type.
        """
        try:
            written: list[dict[str, Any]] = self._write([values])
            encoded = self._encode(written)
            self._build(encoded)
        except ValueError as error:
            raise self._misfit(values, error) from None
        if _MASK in encoded:
            raise _Misfit("it holds a secret of Pydantic's, which would be sent as asterisks; send a str")
        return written[0]

    def build(self, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values that were written.

        Raises:
            _Misfit: one is not of its type.
        """
        try:
            built: list[dict[str, Any]] = self._build(self._encode([written]))
        except ValueError as error:
            raise self._misfit(written, error) from None
        return built[0]

    def _misfit(self, values: Mapping[str, Any], error: ValueError) -> _Misfit:
        errors: Any = getattr(error, "errors", None)
        if errors is None:
            return self._unwritten(values, error)
        found = errors(include_url=False, include_context=False)
        first, more = found[0], len(found) - 1
        _, name, *steps = first["loc"]
        shown = "" if first["type"] == "missing" else f" = {first['input']!r:.100}"
        path = _label(name) + "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in steps)
        others = f" (and {more} more)" if more else ""
        return _Misfit(f"{path}{shown} does not fit {type_text(self._types[name])}: {first['msg']}{others}")

    def _unwritten(self, values: Mapping[str, Any], error: ValueError) -> _Misfit:
        """Return the error about the value that cannot be written: Pydantic does not say which it is."""
        for name, value in values.items():
            try:
                self._encode(self._write([{name: value}]))
            except ValueError as reason:
                return _Misfit(f"{_label(name)} = {value!r:.100} does not fit {type_text(self._types[name])}: {reason}")
        return _Misfit(str(error))


class ArgumentTypes:
    """The types of those arguments of a task that are built from JSON.

    Args:
        task: its name.
        parameters: of the function, without those that the worker gives.
        types: by the name of a parameter, ``*`` and ``**`` included.
    """

    def __init__(self, task: str, parameters: Sequence[Parameter], types: Mapping[str, Any]) -> None:
        self._task, self._form = task, _JsonForm(types)
        positional = [one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        self._count = len(positional)
        self._by_position = [(number, name) for number, name in enumerate(positional) if name in types]
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self._by_name = {one.name: one.name in types for one in named}
        self._rest = next((name for name in types if name.startswith("*") and name[1] != "*"), None)
        self._others = next((name for name in types if name.startswith("**")), None)

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return arguments as they are sent.

        Raises:
            WrongArguments: one is not of its type.
        """
        try:
            return self._put(args, kwargs, self._form.dump(self._take(args, kwargs)))
        except _Misfit as error:
            text = f"task {self._task!r} cannot be called with these arguments: {error}; nothing was sent"
            raise WrongArguments(text) from None

    def build(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments that were sent.

        Raises:
            DecodeError: one is not of its type.
        """
        try:
            return self._put(args, kwargs, self._form.build(self._take(args, kwargs)))
        except _Misfit as error:
            raise DecodeError(f"the arguments of task {self._task!r} cannot be built: {error}") from None

    def _take(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        taken = {name: args[number] for number, name in self._by_position if number < len(args)}
        if self._rest is not None:
            taken[self._rest] = [value for value in args[self._count :] if value is not UNKNOWN]
        taken |= {name: value for name, value in kwargs.items() if self._by_name.get(name)}
        if self._others is not None:
            taken[self._others] = {name: value for name, value in kwargs.items() if name not in self._by_name}
        return {name: value for name, value in taken.items() if value is not UNKNOWN}

    def _put(self, args: Sequence[Any], kwargs: Mapping[str, Any], values: Mapping[str, Any]) -> list[Any]:
        put = [*args]
        for number, name in self._by_position:
            if number < len(put) and name in values:
                put[number] = values[name]
        if self._rest is not None:
            rest = iter(values[self._rest])
            put[self._count :] = [UNKNOWN if value is UNKNOWN else next(rest) for value in put[self._count :]]
        others = {} if self._others is None else values[self._others]
        return [put, {**kwargs, **others, **{name: values[name] for name in kwargs if self._by_name.get(name)}}]


class ResultType:
    """The type of what a task returns, which is built from JSON.

    Args:
        task: its name.
    """

    def __init__(self, task: str, kind: Any) -> None:
        self._task, self._form = task, _JsonForm({_RESULT: kind})

    def dump(self, value: Any) -> Any:
        """Return a value as it is stored.

        Raises:
            EncodeError: it is not of the type.
        """
        try:
            return self._form.dump({_RESULT: value})[_RESULT]
        except Exception as error:  # of a class of the user's: the task has done its work, and is not run again
            raise EncodeError(f"the result of {self._task!r} cannot be kept: {text_of(error)}") from error

    def build(self, written: Any) -> Any:
        """Return the value that was stored.

        Raises:
            DecodeError: it is not of the type.
        """
        try:
            return self._form.build({_RESULT: written})[_RESULT]
        except _Misfit as error:
            raise DecodeError(f"the result of {self._task!r} cannot be built: {error}") from None


class Types(NamedTuple):
    """The types of what is built by the annotations of a function; ``None`` where that is nothing."""

    arguments: ArgumentTypes | None = None
    result: ResultType | None = None


def signature_of(function: Any) -> Signature | None:
    """Return the signature of a function; ``None`` if it has none.

    A decorator's own signature counts, not that of what it wraps: it may add arguments.
    """
    more: dict[str, Any] = {}
    if sys.version_info >= (3, 14):  # where they are evaluated only now, and names for type checkers are unknown
        more["annotation_format"] = import_module("annotationlib").Format.FORWARDREF
    try:
        return inspect.signature(function, follow_wrapped=False, **more)
    except (TypeError, ValueError):  # a function in C may have none
        return None


def read_types(task: str, function: Any, signature: Signature | None, given: int, typed: bool | None) -> Types:
    """Return what is built by the annotations of a function.

    Args:
        task: its name.
        given: the number of first parameters that the worker gives.
        typed: true to use all annotations, false for none; ``None`` for those of types that JSON does not have, as far
            as they can be built.

    Raises:
        ConfigError: an annotation cannot be used, and all are to be.
        ExtraMissing: Pydantic is not installed, and all are to be used.
    """
    if signature is None or typed is False:
        return Types()
    parameters = [*signature.parameters.values()][given:]
    found, unusable = _evaluated(function, _hints(parameters, signature))
    if typed:
        require(_EXTRA, f"typed=True of task {task!r}")
    else:
        found = {name: kind for name, kind in found.items() if not _is_json(kind)}
        if not found or hint_if_missing(_EXTRA):
            return Types()
    found, more = _usable({name: _whole(name, kind) for name, kind in found.items()})
    if typed and (unusable or more):
        raise ConfigError([_problem(task, *one) for one in (*unusable, *more)])
    result = ResultType(task, found.pop(_RESULT)) if _RESULT in found else None
    return Types(ArgumentTypes(task, parameters, found) if found else None, result)


_results: WeakKeyDictionary[Any, ResultType | None] = WeakKeyDictionary()


def result_type_of(name: str, function: Any) -> ResultType | None:
    """Return the type of what a function returns, if that is built from JSON; it is read once."""
    function = getattr(function, "__func__", function)  # a bound method is made anew for each use
    try:
        return _results[function]
    except (KeyError, TypeError):  # not read yet, or an object that cannot be a key
        signature = signature_of(function)
        signature = None if signature is None else signature.replace(parameters=())
        found = read_types(name, function, signature, 0, None).result
    with suppress(TypeError):
        _results[function] = found
    return found


_STARS: Mapping[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_Unusable = tuple[str, Any, str]  # a name, its annotation, and the reason


def _hints(parameters: Sequence[Parameter], signature: Signature) -> dict[str, Any]:
    hints = {_STARS.get(one.kind, "") + one.name: one.annotation for one in parameters}
    hints[_RESULT] = signature.return_annotation
    return {name: hint for name, hint in hints.items() if hint is not Parameter.empty}


def _whole(name: str, kind: Any) -> Any:
    """Return the type of all that a parameter gets: the annotation of ``*args`` is that of each argument."""
    if name.startswith("**"):
        return dict[str, kind]
    return list[kind] if name.startswith("*") else kind


def _label(name: Any) -> str:
    return "the result" if name == _RESULT else str(name)


def type_text(kind: Any) -> str:
    """Format a type for a person."""
    return inspect.formatannotation(kind)


def _evaluated(function: Any, hints: Mapping[str, Any]) -> tuple[dict[str, Any], list[_Unusable]]:
    """Return annotations as types, and those that name what is not known at run time."""
    found, problems = {}, []
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    names = getattr(function, "__globals__", None) or vars(module or SimpleNamespace())
    for name, hint in hints.items():
        try:
            found[name] = get_type_hints(SimpleNamespace(__annotations__={name: hint}), names, include_extras=True)[
                name
            ]
        except Exception as error:  # an annotation may be any expression
            problems.append((name, hint, f"it is not known at run time: {error}"))
    return found, problems


def _usable(types: Mapping[str, Any]) -> tuple[dict[str, Any], list[_Unusable]]:
    """Return the types that can be built from JSON, and the others."""
    found, problems = {}, []
    for name, kind in types.items():
        try:
            if any(one in _NOT_SENT or get_origin(one) in _NOT_SENT for one in _parts(kind)):
                raise TypeError("JSON has no callables and iterators")
            _JsonForm({name: kind})
            found[name] = kind
        except Exception as error:  # of Pydantic, or of a class of somebody else
            problems.append((name, kind, text_of(error).partition("\n")[0]))
    return found, problems


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a type and all those of which it is made."""
    yield kind
    for one in get_args(kind):
        yield from _parts(one)


def _problem(task: str, name: str, kind: Any, why: str) -> Problem:
    text = kind if isinstance(kind, str) else type_text(kind)
    fix = f"{why}; give it another annotation, or leave out typed=True"
    return Problem(f"the annotation of {_label(name)} in task {task!r}", text, fix)


def _is_json(kind: Any) -> bool:
    """Return whether a type's values are the same after they have been JSON."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if isinstance(kind, TypeVar | ParamSpecArgs | ParamSpecKwargs) or any(origin is one for one in _OWN):
        return True
    if origin is Annotated:
        return _is_json(inner[0]) and not any(map(_is_for_pydantic, kind.__metadata__))
    if origin is Literal:
        return True
    if origin in _DICTS:
        return not inner or (inner[0] in (str, Any) and _is_json(inner[1]))
    if origin in (*_LISTS, Union, UnionType):
        return all(map(_is_json, inner))
    alias = getattr(kind, "__supertype__", None) or getattr(
        kind, "__value__", None
    )  # of a NewType, or a `type` statement
    return alias is not None and not isinstance(kind, type) and _is_json(alias)


def _is_for_pydantic(metadata: Any) -> bool:
    module = type(metadata).__module__.partition(".")[0]
    return module in ("pydantic", "annotated_types") or hasattr(metadata, "__get_pydantic_core_schema__")
