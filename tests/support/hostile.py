"""Settings that a server's administrator may have chosen for others: each breaks a program that relies on defaults.

With EMS_TEST_HOSTILE=1 the private servers of a test run have all of them at once.
"""

import os

VARIABLE = "EMS_TEST_HOSTILE"

# What can be set while the server runs, as SET GLOBAL takes it.
SETTINGS: dict[str, str] = {
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "time_zone": "'-08:00'",
    "sql_select_limit": "100",
    "sql_safe_updates": "1",
    "autocommit": "0",
    "isolation": "SERIALIZABLE",
    "read_write": "READ ONLY",
    "wait_timeout": "5",
    "net_read_timeout": "2",
    "lock_wait_timeout": "1",
    "innodb_lock_wait_timeout": "1",
    "max_allowed_packet": "1048576",
    "character_set_server": "latin1",
    "completion_type": "'CHAIN'",
    "unique_checks": "0",
    "sql_auto_is_null": "1",
    "group_concat_max_len": "4",
    "max_execution_time": "1000",
}
_STATEMENTS = {
    "isolation": "SET GLOBAL TRANSACTION ISOLATION LEVEL {value}",
    "read_write": "SET GLOBAL TRANSACTION {value}",
}
_ON_MARIADB = {"max_execution_time": ("max_statement_time", "1")}
_ONLY_MARIADB = {"idle_transaction_timeout": "3", "idle_write_transaction_timeout": "3"}
# What the server reads at its start, and the data folder is made with.
AT_START = {"lower-case-table-names": "1"}


def statements(flavor: str) -> dict[str, str]:
    """The statement that sets each, by its name."""
    settings = {**SETTINGS, **(_ONLY_MARIADB if flavor == "mariadb" else {})}
    if flavor == "mariadb":
        for name, (own, value) in _ON_MARIADB.items():
            del settings[name]
            settings[own] = value
    return {
        name: _STATEMENTS.get(name, f"SET GLOBAL {name} = {{value}}").format(value=value)
        for name, value in settings.items()
    }


def wanted() -> bool:
    """Tell whether this test run has hostile servers."""
    return os.environ.get(VARIABLE) == "1"
