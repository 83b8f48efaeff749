"""SQL is made of the store's own named statements and of escaped values, and of nothing else: the type checker's proof."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from tests.support.worker import LIBRARY, ROOT

_STORE = LIBRARY / "store"

# Every line that ends in "refused" is an error for the type checker, and no other line is.
_USES = """
from emsworker.store.engine import foreign
from emsworker.store.engine.session import Session
from emsworker.store.engine.sql import Sql, Statements, fill, fill_rows, identifier, insertion, join, literal

_SQL = Statements("emsworker.store.topics")


def text(session: Session, name: str, number: int) -> None:
    session.rows(name)  # refused
    session.rows("SELECT 1")  # refused
    session.rows(f"SELECT {name}")  # refused
    session.execute(f"{_SQL.get_topic}")  # refused
    session.execute(_SQL.get_topic % {"name": name})  # refused
    session.change(_SQL.get_topic + name)  # refused
    session.change(_SQL.get_topic + _SQL.get_group)  # refused
    session.send("SELECT {}".format(name))  # refused
    session.send(_SQL.get_topic.format(name=name))  # refused
    session.send(_SQL.get_topic.replace("x", name))  # refused
    session.send(";".join([_SQL.get_topic, _SQL.get_group]))  # refused
    session.mogrify(name, {})  # refused
    foreign.run(session, name)  # refused


def packets(session: Session, name: str) -> None:
    packet = session.packet()
    packet.add(name)  # refused
    packet.add_all([_SQL.get_topic, name], {})  # refused
    packet.add_rows(_SQL.get_topic, [name])  # refused
    packet.add_rows(name, [_SQL.get_topic])  # refused
    packet.add_rows(_SQL.get_topic, [_SQL.get_group], name)  # refused
    packet.insert_many(_SQL.get_topic, name, [{}])  # refused
    packet.insert_many(_SQL.get_topic, f"({name})", [{}])  # refused


def composition(name: str, value: object) -> None:
    fill(name, {})  # refused
    fill(_SQL.get_topic, {"name": name})  # refused
    fill_rows(_SQL.get_topic, {"name": name}, {})  # refused
    fill_rows(_SQL.get_topic, {}, {"name": [name]})  # refused
    join(",", [_SQL.get_topic, name])  # refused
    join(name, [_SQL.get_topic])  # refused
    insertion(_SQL.get_topic, [name])  # refused


def fine(session: Session, name: str, number: int, value: object) -> Sql:
    session.rows(_SQL.get_topic, {"name": name})
    session.execute(_SQL[f"get_{name}"])
    session.send(join(";", [_SQL.get_topic, fill(_SQL.get_group, {"topic_id": number, "name": literal(value)})]))
    session.send(fill(_SQL.get_topic, {"name": identifier(name)}))
    packet = session.packet()
    packet.add(session.mogrify(_SQL.get_topic, {"name": name}))
    packet.insert_many(_SQL.add_guard, _SQL.get_topic, [{"name": name}])
    packet.add_rows(_SQL.add_guard, fill_rows(_SQL.get_group, {"topic_id": number}, {"name": [literal(value)]}))
    print(f"a text for people: {_SQL.get_topic}")
    return insertion(_SQL.get_topic, [_SQL.get_group])
"""


def test_the_type_checker_refuses_every_other_text(tmp_path: Path) -> None:
    planted = tmp_path / "uses.py"
    planted.write_text(_USES)
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(planted)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert done.returncode == 1 and errors, done.stdout + done.stderr
    found = {int(re.findall(r"uses\.py:(\d+): ", line)[0]) for line in errors}
    lines = _USES.splitlines()
    assert found == {number for number, line in enumerate(lines, 1) if line.endswith("# refused")}, errors


def _makes_sql(node: ast.AST) -> bool:
    """``Sql(...)``, or a cast to it."""
    if not isinstance(node, ast.Call):
        return False
    called = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
    return called == "Sql" or (called == "cast" and "Sql" in ast.unparse(node.args[0]))


def test_one_module_makes_sql() -> None:
    makers = [path for path in LIBRARY.rglob("*.py") if any(map(_makes_sql, ast.walk(ast.parse(path.read_text()))))]
    assert makers == [_STORE / "engine" / "sql.py"]


_SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|GRANT [A-Z]+|LOCK|SET (@|SESSION|GLOBAL))\b\s"
)
_ACCOUNTS = LIBRARY / "local"  # sets up the private servers of `ems local`, with names and passwords of its own
_GRIDS = "rights.py"  # names privileges, like `UPDATE ems_message`, of which `ems grants` makes statements for people


def test_there_is_no_sql_outside_of_sql_files() -> None:
    found = [
        f"{path.relative_to(LIBRARY)}:{node.lineno}: {node.value}"
        for path in LIBRARY.rglob("*.py")
        if path.parent != _ACCOUNTS and path.name != _GRIDS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value)
    ]
    assert found == []
