"""``ems clients`` and ``ems trace``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from emsworker.console.completing import complete_topics
from emsworker.console.dialogue import as_far_as_allowed, first_of
from emsworker.console.options import common_options, most_option
from emsworker.console.output import print_gap, print_json, print_record, print_rows, shown_priority, text_of
from emsworker.console.streams import open_stream
from emsworker.core.counted import counted
from emsworker.core.errors import error_line
from emsworker.core.times import utc

if TYPE_CHECKING:
    from emsworker.admin import AuditRow, MessageHistory
    from emsworker.admin.lists import Delayed
    from emsworker.admin.monitoring import GroupTrace, Trace
    from emsworker.core.run import Progress


def _last(told: Sequence[Progress]) -> str:
    others = f" (and {counted(len(told) - 1, 'other')})" if len(told) > 1 else ""
    return f"{told[-1]}{others}" if told else ""


@click.command()
@most_option
@common_options
def clients(limit: int, as_json: bool) -> None:
    """List the clients with their leases, and the leader of the beat.

    A client is one thread of a worker process: ip-pid-uuid-tid. GROUPS are those that it holds claims of now, as
    topic/group; PROGRESS is the last report of its handler. A client whose lease has EXPIRED runs nothing any more; the
    beat gives its work to others and removes it.
    """
    monitoring = open_stream().monitoring()
    rows = [
        {
            "client": view.row.client_id,
            "name": view.row.name,
            "process": view.row.process_id,
            "lease": "live" if view.row.alive else "expired",
            "claims": view.claims,
            "groups": list(view.groups) if as_json else ", ".join(view.groups),
            "progress": [asdict(one) for one in view.progress] if as_json else _last(view.progress),
            "started_at": utc(view.row.started_at),
            "renewed_at": utc(view.row.renewed_at),
            "expires_at": utc(view.row.expires_at),
        }
        for view in first_of(monitoring.clients(), limit, "client", "that are first by name")
    ]
    leaders = [
        {
            "service": row.service,
            "leader": row.holder,
            "lease": "live" if row.alive else "expired",
            "expires_at": utc(row.expires_at),
        }
        for row in monitoring.leaders()
    ]
    if as_json:
        print_json({"clients": rows, "leaders": leaders})
        return
    columns = ["client", "name", "lease", "claims", "groups", "progress", "started_at", "renewed_at"]
    print_rows(rows, columns, False, "No worker is running.", spare=["started_at", "renewed_at"])
    print_gap()
    print_rows(leaders, ["service", "leader", "lease", "expires_at"], False, "No beat is leading.")


@click.command()
@click.argument("message")
@click.option("--topic", shell_complete=complete_topics, help="Look there only.")
@common_options
def trace(message: str, topic: str | None, as_json: bool) -> None:
    """Show the producer of a message, and its history in each group.

    MESSAGE is a message id, or topic/partition/offset. For each group: its state, the client that has it or had it
    last, every attempt that was written down (all that did not end well, and retries that did), and what its handler
    logged, if workers run with EMS_KEEP_LOG_LINES. KIND says if it is a message of the stream, delayed (DUE_AT says
    until when) or cancelled; by whom, if by a person.

    \b
    unclaimed  not taken yet
    waiting    in a range that waits for an owner
    claimed    a client has it and has not reported it finished
    running    a client reported that it runs it now
    retry      waits for its next attempt, or runs in it
    done       finished; one that is cancelled, also passed over
    dead       given up; `ems dead show` shows the dead letter
    dropped    given up, and its dead letter was deleted
    skipped    the group began after it
    cancelled  cancelled before the group claimed it
    """  # noqa: D301 - click wants the character itself
    monitoring = open_stream().monitoring()
    found, with_headers = as_far_as_allowed(
        lambda details: (monitoring.locate(message, topic, details=details), details), "headers and errors"
    )
    cancelled = _cancellation(found.cancelled)
    if as_json:
        records = [
            _record(one, cancelled, with_headers) | {"groups": [_group(group) for group in one.groups]}
            for one in found.traces
        ]
        records += [_delayed(one) | {"groups": []} for one in found.delayed]
        print_json(records or [{"id": message, "kind": "cancelled", "groups": []} | cancelled])
        return
    for one in found.traces:
        _print(one, cancelled, with_headers)
    for waiting in found.delayed:
        print_record(_delayed(waiting), False)
    if not found.traces and not found.delayed:
        print_record({"id": message, "kind": "cancelled"} | cancelled, False)


def _cancellation(action: AuditRow | None) -> dict[str, Any]:
    return {} if action is None else {"cancelled_by": action.actor, "cancelled_at": action.begun_at}


def _delayed(found: Delayed) -> dict[str, Any]:
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": None,
        "id": found.id,
        "kind": "delayed",
        "key": text_of(found.key),
        "tag": text_of(found.tag),
        "task": found.task,
        "created_at": found.created_at,
        "due_at": found.due_at,
        "producer": found.producer,
    }


def _record(found: Trace, cancelled: dict[str, Any], with_headers: bool) -> dict[str, Any]:
    from emsworker.core.ids import uid_text

    place = {"topic": found.topic.name, "partition": found.partition, "offset": found.offset}
    message = found.message
    if message is None:
        return place | {"kind": "deleted"}
    return place | {
        "id": uid_text(message.uid) if message.uid else None,
        "kind": message.kind,
        "key": text_of(message.key),
        "tag": text_of(message.tag),
        **({"priority": shown_priority(found.headers), "headers": dict(found.headers)} if with_headers else {}),
        "size": message.size_bytes,
        "born_at": message.born_at,
        "producer": message.producer_id,
        **(cancelled if message.kind == "cancelled" else {}),
    }


def _group(found: GroupTrace) -> dict[str, Any]:
    history = found.history
    return {
        "group": found.group.name,
        "state": found.state.value,
        "client": found.client_id,
        "progress": asdict(found.progress) if found.progress else None,
        "cursor": history.cursor,
        "claim": asdict(history.claim) if history.claim else None,
        "retry": asdict(history.retry) if history.retry else None,
        "dead": asdict(history.dead) if history.dead else None,
        "attempts": [asdict(attempt) for attempt in history.attempts],
        "logs": [asdict(log) for log in history.logs],
    }


def _reason(history: MessageHistory) -> str | None:
    """Return why a message was given up, or why it waits for a retry."""
    if history.dead:
        return history.dead.reason
    return error_line(history.retry.last_error) if history.retry and history.retry.last_error else None


def _print(found: Trace, cancelled: dict[str, Any], with_headers: bool) -> None:
    print_record(_record(found, cancelled, with_headers), False)
    print_gap()
    rows = [
        {
            "group": one.group.name,
            "state": one.state.value,
            "client": one.client_id,
            "progress": str(one.progress) if one.progress else None,
            "claimed_at": one.history.claim.claimed_at if one.history.claim else None,
            "progress_at": one.history.claim.progress_at if one.history.claim else None,
            "due_at": one.history.retry.due_at if one.history.retry else None,
            "reason": _reason(one.history),
        }
        for one in found.groups
    ]
    columns = ["group", "state", "client", "progress", "claimed_at", "progress_at", "due_at", "reason"]
    print_rows(rows, columns, False, "The topic has no group.", spare=["progress_at", "claimed_at", "client"])
    attempts = [
        {
            "group": one.group.name,
            "attempt": attempt.attempt,
            "outcome": attempt.outcome.value,
            "ended_at": attempt.ended_at,
            "ran_ms": attempt.ran_ms,
            "client": attempt.client_id,
            "error": error_line(attempt.error),
        }
        for one in found.groups
        for attempt in one.history.attempts
    ]
    if attempts:
        print_gap()
        columns = ["group", "attempt", "outcome", "ended_at", "ran_ms", "client", "error"]
        print_rows(attempts, columns, False, "", spare=["client", "ran_ms", "ended_at"])
    for one in found.groups:
        for log in one.history.logs:
            print_gap()
            left_out = f", without the first {counted(log.left_out, 'line')}" if log.left_out else ""
            print_record({"group": one.group.name, f"log of attempt {log.attempt}{left_out}": log.lines}, False)
