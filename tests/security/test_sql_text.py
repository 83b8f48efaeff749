"""SQL is made of the store's own named statements and of escaped values, and of nothing else.

A value that goes into a text without the escaping functions is listed here with the reason why that is safe; a new one
turns this red until somebody has thought about it.
"""

import ast
import re

import pytest

from tests.security.sql_text import Part, parts
from tests.support.worker import LIBRARY

_PACKAGE = LIBRARY
_STORE = _PACKAGE / "store"
_ROWS = "rows that mogrify has escaped, one by one"
_NUMBERS = "numbers that the server or the code itself has made"

# module: (function, reason, values)
_KNOWN: dict[str, list[tuple[str, str, set[str]]]] = {
    "detaching": [("detach.attempt", _ROWS, {"rows"})],
    "clients": [("register.work", "a constant of the line before; its values go through mogrify", {"row"})],
    "connection": [("Connection.query", "statements of ours, set by the session", {"opening"})],
    "dead": [
        ("_note_restored", _NUMBERS, {"group.topic_id", "partition", "offset"}),
        ("_note_restored", _ROWS, {"rows"}),
        ("_requeue", _ROWS, {"rows"}),
        ("_requeue", "a named statement, or NULL", {"key"}),
    ],
    "dedup": [
        ("take_key", "bytes_literal's, of the two lines before", {"key", "uid_text"}),
        ("take_key", "numbers: round makes one or fails", {"round(wanted.window_s * 1000000)", "wanted.topic_id"}),
        ("take_key", "a number, and the table's quoted name", {"topic_id_text(database, wanted.topic_id)"}),
        ("take_key", "made of the others, in this function", {"row", "until"}),
        (
            "take_key",
            "the same, and the table's quoted name",
            {"{'table': table, 'where': where, 'uid': uid_text, 'until': until}", "{'table': table, 'where': where}"},
        ),
        ("take_key", "the table's quoted name", {"{'table': table}"}),
    ],
    "guards": [
        (
            "topic_id_text",
            "a number, and the table's quoted name",
            {"{'topic_id': topic_id, 'table': qualified(database, 'ems_topic_guard')}"},
        ),
    ],
    "grants": [
        ("statements", "checked by patterns that let no quote and no space in", {"database", "user", "host"}),
        ("statements", "the same, and a backslash", {"chr(92)", "names"}),
        ("statements", "our own file", {"line.rstrip(';')"}),
        ("_lines", "the name of a section of our own file, and for people", {"role", "one", "section"}),
        ("_allowed", "the same", {"role", "allowance"}),
    ],
    "messages": [
        ("add_batch", _NUMBERS, {"batch.topic_id", "batch.partition", "number", "offset", "where | {'base': base}"}),
        ("add_batch", "made of the others, in this function", {"head", "rows"}),
        ("add_batch", "escape_message's", {"row"}),
        ("close_hole_at", _NUMBERS, {"topic_id", "partition", "offset"}),
        ("close_hole_at.work", _NUMBERS, {"values"}),
        ("escape_message", "a length", {"len(message.body)"}),
    ],
    "blocking": [
        ("block", _ROWS, {"rows"}),
        ("block", "a constant", {"BLOCKED_YEAR"}),
    ],
    "outbox": [
        ("When.text", _NUMBERS, {"number", "round(self.delay_s * 1000000) + number"}),
        (
            "When.text",
            "digits and their separators, of a datetime",
            {"self.due_at.replace(tzinfo=None).isoformat(' ', 'microseconds')"},
        ),
        ("insert_text", "a number, or a statement about it", {"topic_id if number else guarded"}),
        ("_delete_texts", "bytes_literal's, and a number", {"{'moved_uids': moved, 'topic_id': topic_id}"}),
        (
            "insert_text",
            "a partition that the topic has, by Ems._prepare",
            {"'NULL' if message.partition is None else message.partition"},
        ),
        ("insert_text", "see When.text", {"when.text(number)"}),
        ("insert_text", "a number between 0 and 9, by Ems._prepare", {"message.level"}),
        ("insert_text", "made of the others, in this function", {"rows"}),
        ("insert_text", "the table's quoted name", {"{'table': table}"}),
    ],
    "probe": [
        ("_try", "names of our own tables and columns, in a named statement", {"table", "column", "statement"}),
        ("_try", "the name of a statement of our own file", {"verb.lower()"}),
        ("has_privileges", "statements made in that way", {"tries"}),
        ("_missing_on_tables", "for people", {"privilege", "table"}),
    ],
    "progress": [
        ("_add_done_retries", _ROWS, {"rows"}),
        ("_add_retries", _ROWS, {"rows"}),
        ("_add_retries", "a named statement, or NULL", {"key"}),
        ("add_failures", _ROWS, {"attempts"}),
    ],
    "putback": [
        ("_have_run", _NUMBERS, {"where['topic_id']", "where['partition']", "row.offset", "group.id", "place"}),
        ("_have_run", "made of the others, in this function", {"head", "retries"}),
        (
            "_values",
            _NUMBERS,
            {"where['topic_id']", "where['partition']", "row.offset", "row.born_us", "len(row.body)"},
        ),
        ("_values", "bytes_literal's, of the lines before", {"blobs", "producer"}),
        ("_values", "made of a number, in this function", {"born"}),
        (
            "_values",
            "where bytes_literal is called",
            {"map(bytes_literal, (row.uid, row.key, row.tag, row.headers, row.body))"},
        ),
        ("put_back.work", "made by _values", {"(_values(where, row) for row in wanted)"}),
    ],
    "replay": [("_add_claims", _ROWS, {"rows"}), ("replay.work", _ROWS, {"rows"})],
    "reports": [("add_reports", _ROWS, {"rows"})],
    "results": [("add_results", _ROWS, {"rows"}), ("_row", "for people; a parameter in the end", {"len(row.body)"})],
    "scan": [
        (
            "_fetch",
            "named statements of scan.sql, the names being constants of the Spark source",
            {
                "(getattr(_SQL, f'{query.dataset}_{name}') for name in query.columns)",
                "[*statement, getattr(_SQL, f'order_{query.dataset}')]",
                "columns or '1'",
            },
        ),
        ("_fetch", "the name of a statement of scan.sql", {"query.dataset", "name"}),
        ("columns_of", "the name of a statement of scan.sql", {"dataset", "name"}),
        ("weigh", "the name of a statement of scan.sql", {"query.dataset"}),
        ("predicate", _NUMBERS, {"offsets.args"}),
    ],
    "schedules": [
        ("_add_slots", _ROWS, {"rows"}),
        ("slot_uid", "no SQL: a text to hash", {"name", "slot.isoformat()"}),
    ],
    "schema": [
        ("create_database", "letters, digits and _, checked", {"_plain(name)"}),
        ("drop_database", "letters, digits and _, checked", {"_plain(name)"}),
        ("table_columns", "no SQL: text to search", {"(text for _, text in sorted(_migrations().items()))"}),
        ("unsupported", "for people", {"kind", "facts.version", "why"}),
    ],
    "session": [
        ("Packet.send", "what add, add_escaped and add_rows were given", {"part"}),
        ("Packet.add_rows", "a named statement and its end", {"head", "end"}),
        ("Packet.add_rows", "what it was given, each of which its caller accounts for", {"part"}),
        ("Session._too_large", "for people", {"len(sql)", "self.most_bytes"}),
        ("Session._find_writable", "for people", {"host", "port", "error"}),
        ("Packet.add_all", "escaped values, and statements of ours", {"statement", "literals"}),
        ("Session.mogrify", "escaped values, and a statement of ours", {"statement", "self.literals(args)"}),
        ("Session._use", "backticks are doubled", {"quoted(self._url.database)"}),
        (
            "Session._connect",
            "statements of ours",
            {"(_SQL.set_session, _SQL.set_autocommit, _SQL.get_packet_limit)"},
        ),
        ("Session._undo", "statements of ours", {"(_SQL.rollback, _SQL.unlock_tables, _SQL.release_locks, *ours)"}),
        ("literal", "this is where values are escaped", {"[literal(one) for one in value]"}),
        ("literal", "digits and their separators, of a datetime", {"value.isoformat(' ')"}),
        ("_text_literal", "neither a quote nor a backslash is in it", {"text"}),
        ("_text_literal", "hexadecimal digits", {"text.encode().hex()"}),
        ("bytes_literal", "hexadecimal digits", {"value.hex()"}),
    ],
    "skipping": [("make_skips", "for people; a parameter in the end", {"policy"})],
    "sql": [
        ("Statements.__init__", "the name of one of our files", {"name"}),
        ("_strip", "lines of our own files", {"lines"}),
    ],
    "staging": [
        ("stage", _NUMBERS, {"chunk", "place", "row.topic_id", "row.partition"}),
        ("stage", "made of the others, in this function", {"head", "values"}),
    ],
    "tables": [
        ("quoted", "backticks are doubled", {"name"}),
        ("qualified", "quoted, and a table of ours", {"quoted(database)", "table"}),
    ],
    "tls": [("_checking_context", "for people", {"name", "options[name]"})],
}


@pytest.mark.parametrize("module", sorted(path.stem for path in _STORE.rglob("*.py") if path.stem != "__init__"))
def test_every_value_that_is_put_into_a_text_is_known(module: str) -> None:
    (path,) = _STORE.rglob(f"{module}.py")
    found = parts(path.read_text())
    known = {Part(where, value) for where, _, values in _KNOWN.get(module, []) for value in values}
    assert found - known == set(), "escape it with mogrify or bytes_literal, or say here why it is safe"
    assert known - found == set(), "no longer there"


_SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|GRANT|LOCK|SET (@|SESSION|GLOBAL))\b\s")
_ACCOUNTS = _PACKAGE / "local"  # sets up the private servers of `ems local`, with names and passwords of its own


def test_there_is_no_sql_outside_of_the_store() -> None:
    found = [
        f"{path.relative_to(_PACKAGE)}:{node.lineno}: {node.value}"
        for path in _PACKAGE.rglob("*.py")
        if path.parent != _ACCOUNTS and _STORE not in path.parents
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _SQL.match(node.value)
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        "session.rows(f'SELECT {name}')",
        "session.execute('SELECT %s' % name)",
        "session.execute(_SQL.get_topic % {'a': name})",
        "session.send(_SQL.get_topic + name)",
        "session.send('SELECT ' + name)",
        "session.send('SELECT {}'.format(name))",
        "session.send(_SQL.get_topic.replace('x', name))",
        "packet.add_escaped(','.join(name))",
        "packet.add_rows(_SQL.get_topic, name)",
    ],
)
def test_the_search_finds_what_it_should(line: str) -> None:
    assert {part.value for part in parts(f"def work(name):\n    {line}\n")} & {"name", "{'a': name}"}


def test_the_search_passes_what_is_escaped() -> None:
    source = "def f(s, v):\n    s.send(f'{_SQL.a} {bytes_literal(v)} {s.mogrify(_SQL.b, v)}')\n    s.rows(_SQL.a, {'v': v})\n"
    assert parts(source) == set()
