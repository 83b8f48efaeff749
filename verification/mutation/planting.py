"""Breaking the real code on purpose: another text for one of its statements, or another function."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from emsworker.store.engine.session import Packet, Session
from emsworker.store.engine.sql import Statements
from tests.support.statements import module_of, sql_files, statements_of

SetAttribute = Callable[[Any, str, Any], None]


@dataclass(frozen=True)
class Text:
    """A change of one statement.

    Attributes:
        subject: the file of the statement; name: its name.
        old: what is replaced in it, by ``new``.
    """

    subject: str
    name: str
    old: str
    new: str


@dataclass(frozen=True)
class Function:
    """Another function, or method.

    Attributes:
        module: where it is; name: its name there, with that of its class before a dot.
        make: makes the other one from the real one.
    """

    module: str
    name: str
    make: Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    Attributes:
        what: in words; changes: of the code.
        found_by: an order (``none``, ``partition``, ``key``) or ``limits``: the property tests of it; or else a test.
    """

    what: str
    found_by: str
    changes: tuple[Text | Function, ...]

    @property
    def finder(self) -> str:
        """The test that finds it, for people."""
        if "::" in self.found_by:
            path, test = self.found_by.split("::")
            return f"`{path}`: `{test}`"
        orders = {"none": "without order", "partition": "by partition", "key": "by key"}
        return f"properties, {orders.get(self.found_by, self.found_by)}"


def plant(fault: Fault, set_attribute: SetAttribute) -> None:
    """Change the code of this process.

    Args:
        set_attribute: as :func:`setattr`; that of pytest's ``monkeypatch`` takes it back.

    Raises:
        LookupError: the code is not any more what the fault was made for.
    """
    texts: dict[str, str] = {}
    for change in fault.changes:
        if isinstance(change, Text):
            real = getattr(statements_of(change.subject), change.name)
            if change.old not in real:
                raise LookupError(f"{change.subject}.{change.name} has no {change.old!r}; fix the table of faults")
            texts[real] = real.replace(change.old, change.new)
        else:
            _replace(change, set_attribute)
    if texts:
        _replace_texts(texts, set_attribute)


def _replace(change: Function, set_attribute: SetAttribute) -> None:
    owner: Any = importlib.import_module(change.module)
    *classes, name = change.name.split(".")
    for one in classes:
        owner = getattr(owner, one)
    set_attribute(owner, name, change.make(getattr(owner, name)))


def _replace_texts(texts: dict[str, str], set_attribute: SetAttribute) -> None:
    """Where a statement is looked up; and where it becomes a packet, for those that were looked up before."""
    for path in sql_files():
        loaded = importlib.import_module(module_of(path))
        for kept in vars(loaded).values():
            if isinstance(kept, Statements):
                for name in [name for name in kept if kept[name] in texts]:
                    set_attribute(kept, name, texts[kept[name]])
    mogrify, add_all = Session.mogrify, Packet.add_all

    def planted(self: Session, statement: str, args: Any) -> str:
        return mogrify(self, texts.get(statement, statement), args)

    def planted_together(self: Packet, statements: Sequence[str], args: Any) -> None:
        add_all(self, [texts.get(statement, statement) for statement in statements], args)

    set_attribute(Session, "mogrify", planted)
    set_attribute(Packet, "add_all", planted_together)
