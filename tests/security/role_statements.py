"""Which of the store's statements each role runs, and the running of one without effect."""

import re
from collections.abc import Iterator

import pymysql

from emsworker.store.engine.sql import Statements
from tests.support.statements import statements_of

ALL = "*"
_SCHEMA = {"schema": "get_version get_stream_id get_now find_version_table"}
_NAMES = {"topics": "get_topic list_topics get_group list_groups"}
_CANCEL = "delete_outbox lock_message cancel_message list_keyed_groups drop_waiting_retries"
_TURN = "lock_turn promote"

# Module -> the statements that the role runs, or all of the module but those behind a minus.
RUNS: dict[str, dict[str, str]] = {
    "producer": {
        **_SCHEMA,
        "topics": "get_topic list_topics",
        "guards": "topic_id",
        "messages": "raise_counter insert_messages find_uids find_next_free_offset",
        "outbox": "insert_outbox find_outbox",
        "dedup": "hold_key read_key renew_key find_outbox find_place is_unfinished",
        "results": "find_results find_buried",
        "reports": "find_reports",
    },
    "worker": {
        **_SCHEMA,
        **_NAMES,
        **dict.fromkeys(
            [
                "detaching",
                "claims",
                "ordered",
                "blocking",
                "progress",
                "handlers",
                "recalling",
                "recovery",
                "high_watermark",
                "guards",
                "retention",
                "outbox",
                "once",
                "messages",
                "dedup",
                "results",
            ],
            ALL,
        ),
        "clients": "* -list_clients -list_leaders",
        "broadcast": "* -list_positions -forget_positions",
        "reports": "* -list_reports",
        "limits": "* -set_limit -count_slots -delete_limit -delete_slots",
        "schedules": "* -list_schedules -delete_schedule",
        "skipping": "list_policies is_older",
        "cursors": "lock_cursor get_log_start skip_cursor add_skip list_positions",
        "alarms": "* -add_rule -delete_rule -delete_alarms -list_events_of_rule",
    },
    "reader": {
        **_SCHEMA,
        **_NAMES,
        **dict.fromkeys(["monitoring", "quality", "scan", "search", "snapshot", "trace", "watching"], ALL),
        "dead": "list_dead get_dead find_dead find_dead_at count_dead",
        "clients": "list_clients list_leaders",
        "broadcast": "list_positions",
        "reports": "list_reports find_reports",
        "limits": "get_limit count_slots",
        "schedules": "list_schedules",
        "skipping": "list_policies",
        "alarms": "list_alarms",
        "cursors": "list_positions",
        "cancel": "list_stale_retries count_outbox",
    },
    "sink": {**_SCHEMA, "topics": "get_topic list_topics", "messages": "raise_counter", "staging": ALL},
    "producer_auto_create": {"topics": "add_topic lock_topic add_guard add_partition"},
    "sink_auto_create": {"topics": "add_topic lock_topic add_guard add_partition"},
    "worker_auto_create": {"topics": "add_topic lock_topic add_guard add_partition add_group add_cursor get_extent"},
    "producer_cancel": {"cancel": _CANCEL, "blocking": _TURN},
    "worker_cancel": {"cancel": _CANCEL, "blocking": _TURN},
}
DENIED = (1044, 1142, 1143, 1227, 1370)
_NOT_RUN = (1054, 1064, 1146)  # unknown column, wrong syntax, no such table: then nothing was shown
_TABLES = {
    "outbox": "ems_outbox",
    "dedup": "ems_dedup",
    "guards": "ems_topic_guard",
}  # of modules that name their table at run time
_VALUES = re.compile(r"^INSERT .*\(([^()]*)\) VALUES$", re.DOTALL)
_VERBS = ("SELECT", "INSERT", "UPDATE", "DELETE", "SET", "(SELECT")


def texts(section: str) -> Iterator[tuple[str, str]]:
    """The names and texts of the statements that a section of the grants is for, ready to be run."""
    for module, wanted in RUNS[section].items():
        statements = statements_of(module)
        names = set(statements._statements) if wanted.startswith(ALL) else set(wanted.split())
        names -= {name[1:] for name in wanted.split() if name.startswith("-")}
        for name in sorted(names):
            text = getattr(statements, name)
            if text.startswith(("FROM ems_", "from_")):
                text = f"SELECT 1 {text}"
            if text.startswith(_VERBS):
                yield f"{module}.{name}", _filled(statements, module, name, text)


def _filled(statements: Statements, module: str, name: str, text: str) -> str:
    if match := _VALUES.match(text):
        end = "keep_first" if "keep_first" in statements and name != "insert_slots" else f"{name}_end"
        row = ",".join("NULL" for _ in match[1].split(","))
        text = f"{text} ({row}) {getattr(statements, end) if end in statements else ''}"
    text = text.replace("%(table)s", _TABLES.get(module, "?")).replace("%(where)s", "topic_id = 0 AND `key` = ''")
    text = text.replace("%(moved_uids)s", "SELECT '' AS uid")
    text = re.sub(r"IN %\(\w+\)s", "IN (NULL)", text)
    text = re.sub(r"LIMIT %\(\w+\)s", "LIMIT 1", text)
    return re.sub(r"%\(\w+\)s", "NULL", text).replace("%%", "%")


def refused(connection: "pymysql.Connection[pymysql.cursors.Cursor]", name: str, text: str) -> str | None:
    """Run a statement and roll it back: how the server refused it, if it did. Any other error comes after that check."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(text)
    except pymysql.err.MySQLError as error:
        assert error.args[0] not in _NOT_RUN, (name, text, error)
        return str(error) if error.args[0] in DENIED else None
    finally:
        connection.rollback()
    return None
