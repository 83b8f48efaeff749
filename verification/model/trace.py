"""What really happened: every change of the tables, recorded by triggers and put together into transactions.

Transactions are put in the order of their last changes. Whoever waits for a lock of another one changes its row later
than that one's last change, so this is an order in which they could have run one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

SITE = Path(__file__).parent / "tracing"
_COLUMNS = {
    "ems_message": ("0", "offset", "kind"),
    "ems_cursor": ("group_id", "next_offset"),
    "ems_claim": (
        "group_id",
        "lo",
        "claim_id",
        "hi",
        "acked_to",
        "state",
        "source",
        "client_id",
        "isolation",
        "running",
    ),
    "ems_retry": ("group_id", "offset", "attempt", "claim_id", "isolation"),
    "ems_dead": ("group_id", "offset"),
}
_LOG = (
    "CREATE TABLE trace_log (id BIGINT PRIMARY KEY AUTO_INCREMENT, tx BIGINT UNSIGNED NOT NULL, what VARCHAR(16) NOT NULL, "
    "tab VARCHAR(16) NOT NULL, was TEXT, now TEXT) ENGINE=InnoDB"
)
Row = Mapping[str, Any]


def statements() -> Iterator[str]:
    """The table of the trace, and a trigger for each kind of change."""
    yield _LOG
    for table, columns in _COLUMNS.items():
        images = {
            row: f"JSON_ARRAY({', '.join(column if column == '0' else f'{row}.`{column}`' for column in columns)})"
            for row in ("OLD", "NEW")
        }
        for event, was, now in (
            ("INSERT", "NULL", images["NEW"]),
            ("UPDATE", images["OLD"], images["NEW"]),
            ("DELETE", images["OLD"], "NULL"),
        ):
            yield (
                f"CREATE TRIGGER trace_{table}_{event} AFTER {event} ON {table} FOR EACH ROW "
                "INSERT INTO trace_log (tx, what, tab, was, now) "
                f"VALUES (COALESCE(@trace_tx, 0), COALESCE(@trace_what, ''), '{table}', {was}, {now})"
            )


@dataclass(frozen=True)
class Change:
    """One row before and after; ``None``: it is not there."""

    table: str
    was: Row | None
    now: Row | None

    @property
    def row(self) -> Row:
        """The row after the change, or before it if it is gone."""
        found = self.was if self.now is None else self.now
        assert found is not None
        return found


@dataclass(frozen=True)
class Transaction:
    """Changes that were committed together; ``what``: "recover", or "" for anything else."""

    what: str
    changes: tuple[Change, ...]

    def of(self, table: str) -> list[Change]:
        """The changes of one table."""
        return [change for change in self.changes if change.table == table]


def read(rows: list[tuple[Any, ...]], group_id: int) -> list[Transaction]:
    """What of the recorded rows (id, tx, what, tab, was, now) concerns a group, or the stream, in order."""
    last = {tx: number for number, tx, *_ in rows if tx}
    found = []
    for _, members in groupby(
        sorted(rows, key=lambda row: (last.get(row[1], row[0]), row[0])), lambda r: r[1] or -r[0]
    ):
        kept = list(members)
        every = [_change(*row[3:]) for row in kept]
        changes = [one for one in every if one.row.get("offset") != 0]  # fillers are no part of the stream
        mine = tuple(one for one in changes if one.row.get("group_id", group_id) == group_id)
        if mine:
            found.append(Transaction(kept[0][2], mine))
    return found


def image(table: str, text: str) -> dict[str, Any]:
    """A row as the triggers have written it down."""
    return dict(zip(_COLUMNS[table], json.loads(text), strict=True))


def _change(table: str, was: str | None, now: str | None) -> Change:
    images = [None if text is None else image(table, text) for text in (was, now)]
    for one in images:
        if one is not None:
            one.pop("0", None)
    return Change(table, *images)
