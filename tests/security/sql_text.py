"""Finds, in Python source, every expression that builds a text out of values."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

# Methods that put values into a text.
_BUILDERS = {"format", "format_map", "replace", "join"}
# A method that is given rows of a statement, as texts.
_TAKES_ROWS = "add_rows"
# Calls whose text is for people.
_FOR_PEOPLE = {"debug", "info", "warning", "error", "exception", "Problem"}
# Functions that make a literal of a value, whatever it is.
_ESCAPES = {"bytes_literal", "mogrify"}


@dataclass(frozen=True, order=True)
class Part:
    """A value that goes into a text.

    Args:
        where: ``function`` or ``Class.function``.
        value: the expression, as Python writes it.
    """

    where: str
    value: str


def parts(source: str) -> set[Part]:
    """Every value that goes into a text, but for those that cannot carry outside data.

    Left out are errors and log lines, the store's named statements (``_SQL.x``), constants, and what the escaping
    functions return.
    """
    return set(_below(ast.parse(source), ()))


def _below(node: ast.AST, where: tuple[str, ...]) -> Iterator[Part]:
    if _is_for_people(node):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        if node.name in ("__str__", "__repr__"):
            return
        where = (*where, node.name)
    for value in _interpolated(node):
        if not _is_harmless(value):
            yield Part(".".join(where), ast.unparse(value))
    for child in ast.iter_child_nodes(node):
        yield from _below(child, where)


def _is_for_people(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = _called(node)
    return name in _FOR_PEOPLE or (
        name[:1].isupper() and name.endswith(("Error", "Missing", "Lost", "Denied", "TooOld"))
    )


def _called(call: ast.Call) -> str:
    return getattr(call.func, "attr", "") or getattr(call.func, "id", "")


def _interpolated(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.Add) and _may_be_text(node.left, node.right):
        yield from (node.left, node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _builds(node, node.func.attr):
        yield from (node.func.value, *node.args, *(keyword.value for keyword in node.keywords))
    elif isinstance(node, ast.Call) and _called(node) == _TAKES_ROWS:
        yield from node.args


def _builds(call: ast.Call, name: str) -> bool:
    return name in _BUILDERS and (name != "replace" or len(call.args) == 2)  # datetime.replace takes keywords


def _may_be_text(left: ast.expr, right: ast.expr) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or _is_statement(side)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (left, right)
    ) or (isinstance(left, ast.Name) and left.id in ("statement", "sql"))


def _is_statement(node: ast.expr) -> bool:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_SQL"


def _is_harmless(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant | ast.JoinedStr) or _is_statement(value):
        return True
    if isinstance(value, ast.Dict):
        return all(map(_is_harmless, value.values))
    if isinstance(value, ast.ListComp | ast.GeneratorExp):
        return _is_harmless(value.elt)
    if isinstance(value, ast.Call):
        return _called(value) in _ESCAPES or _called(value) in _BUILDERS  # what builds is looked at by itself
    return isinstance(value, ast.BinOp) and any(True for _ in _interpolated(value))
