"""``ems flows``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from emsworker.extending.console import (
    COUNT,
    OpenStream,
    common_options,
    confirm,
    each_of,
    end_with,
    open_stream,
    print_done,
    print_gap,
    print_json,
    print_record,
    print_rows,
    progress,
    read_moment,
    stream_options,
    together,
    yes_option,
)
from emsworker.extending.values import counted

if TYPE_CHECKING:
    from datetime import datetime

    from emsworker.extending.console import Errors
    from emsworker.extending.values import PreviewDecoder
    from emsworker.flows.operating.admin import FlowCount, FlowDetail, FlowEntry, FlowFilter, Flows, StepEntry

_MOST_COUNTED = 10_000
_MOST_SHOWN = 5
_BY = {"state": "state", "name": "name", "waits": "waits", "error": "error_type"}
_STATES = ("ready", "running", "waiting", "done", "failed", "cancelled")


def _read_attributes(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    for item in given:
        if not item.partition("=")[0] or "=" not in item:
            raise click.BadParameter(f"{item!r} is not an attribute; write NAME=VALUE.")
    return {name: value for name, _, value in (item.partition("=") for item in given)}


_filter_options = together(
    click.option(
        "--state", "states", multiple=True, type=click.Choice(_STATES), help="Only in this state; several: any of them."
    ),
    click.option("--name", metavar="NAME", help="Only flows of this function."),
    click.option("--waits", metavar="TEXT", help="Only those that wait for this: 'signal paid', or how it begins."),
    click.option("--error", metavar="CLASS", help="Only those whose error is of this class."),
    click.option(
        "--attribute",
        "attributes",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_read_attributes,
        help="Only with this attribute; several: all of them.",
    ),
    click.option(
        "--since",
        metavar="DURATION|TIME",
        callback=read_moment,
        help="Only those that changed last within it, or from then on.",
    ),
    click.option("--until", metavar="DURATION|TIME", callback=read_moment, help="Only those that changed last before."),
)


@click.group()
@stream_options
def flows() -> None:
    """List, show, cancel, retry, signal and delete flows.

    A flow is a function of many steps that ends once, however often its processes die. It is kept with its steps for
    some days after its end (setting flow_keep_s).
    """


def _opened(stream: OpenStream) -> Flows:
    from emsworker.flows.operating.admin import Flows

    opened = Flows(stream.database())
    opened.check()
    return opened


def _filter_of(stream: OpenStream, given: dict[str, Any], **more: Any) -> FlowFilter:
    """Return the selection that was given; its options are taken out of ``given``."""
    from emsworker.flows.operating.admin import FlowFilter

    since, until = (_moment(stream, given.pop(name)) for name in ("since", "until"))
    names = {name: given.pop(name) for name in ("states", "name", "waits", "error", "attributes")}
    return FlowFilter(**names, since=since, until=until, **more)


def _moment(stream: OpenStream, value: float | datetime | None) -> datetime | None:
    """Return a time; a duration is counted back from the server's now."""
    from datetime import timedelta

    from emsworker.extending.database import server_now

    return stream.database().call(server_now) - timedelta(seconds=value) if isinstance(value, int | float) else value


@flows.command("list")
@_filter_options
@click.option(
    "--by",
    multiple=True,
    type=click.Choice(list(_BY)),
    help="Count them by this instead of listing them; may be repeated.",
)
@click.option("--limit", type=COUNT, default=50, show_default=True, help="Maximum number of rows.")
@click.option("--after", metavar="TOKEN", help="The next page, as the page before names it.")
@common_options
def list_(by: tuple[str, ...], limit: int, after: str | None, as_json: bool, **given: Any) -> None:
    """List flows, the latest change first, or count them with --by.

    WAITS is what a flow waits for. With --attribute, the flow that was started last comes first.
    """
    stream = open_stream()
    opened, only = _opened(stream), _filter_of(stream, given)
    if by:
        if after is not None or only.attributes:
            raise click.UsageError("--by counts all of a state; leave out --after and --attribute.")
        _print_counts(opened.counts(only), tuple(dict.fromkeys(by)), limit, as_json)
        return
    found, after = _pages(opened, only, after, limit)
    rows = [_row(one) for one in found]
    if as_json:
        print_json({"flows": rows, "after": after})
        return
    columns = ["id", "name", "state", "waits", "error", "started_at", "changed_at"]
    print_rows(rows, columns, False, "There are no such flows.", spare=["started_at", "error", "changed_at"])
    if after is not None:
        click.echo(f"There are more; --after {after} shows the next page.", err=True)


def _pages(opened: Flows, only: FlowFilter, after: str | None, limit: int) -> tuple[list[FlowEntry], str | None]:
    """Read pages until there are enough rows, or there is nothing more."""
    found: list[FlowEntry] = []
    while len(found) < limit:
        page = opened.page(only, after=after, limit=limit - len(found))
        found += page.rows
        after = page.after
        if after is None:
            break
    return found, after


def _row(flow: FlowEntry) -> dict[str, Any]:
    return {
        "id": flow.id,
        "name": flow.name,
        "version": flow.version,
        "topic": flow.topic,
        "state": flow.state,
        "waits": flow.waits,
        "error": flow.error_type,
        "undone": flow.undone,
        "started_at": flow.started_at,
        "changed_at": flow.changed_at,
        "begins_at": flow.begins_at,
        "deadline_at": flow.deadline_at,
        "ended_at": flow.ended_at,
    }


def _print_counts(counts: list[FlowCount], by: tuple[str, ...], limit: int, as_json: bool) -> None:
    totals: dict[tuple[Any, ...], dict[str, Any]] = {}
    for one in counts:
        names = {name: getattr(one, _BY[name]) for name in by}
        row = totals.setdefault(tuple(names.values()), names | {"count": 0, "capped": False})
        row["count"] += one.count
        row["capped"] |= one.capped
        row["oldest_at"] = min(one.oldest, row.get("oldest_at", one.oldest))
        row["latest_at"] = max(one.latest, row.get("latest_at", one.latest))
    rows = sorted(totals.values(), key=lambda row: -row["count"])
    shown = rows[:limit]
    if not as_json:
        shown = [row | {"count": f"{row['count']}+" if row["capped"] else row["count"]} for row in shown]
    print_rows(shown, [*by, "count", "oldest_at", "latest_at"], as_json, "There are no such flows.")
    if len(rows) > limit:
        click.echo(f"There are {len(rows) - limit} more rows; --limit shows them.", err=True)


@flows.command()
@click.argument("id_", metavar="ID")
@click.option(
    "--values", is_flag=True, help="Print what the flow has emitted so far, one value on each line, and no more."
)
@common_options
def show(id_: str, values: bool, as_json: bool) -> None:
    """Show the flow ID: its steps, what it waits for, and the flows that it has called.

    MESSAGE is the id of a call, for `ems trace` and `ems dead show`.
    """
    from emsworker.extending.console import as_far_as_allowed

    opened = _opened(open_stream())
    if values:
        _print_values(opened, id_, as_json)
        return
    found = as_far_as_allowed(lambda details: opened.show(id_, details=details), "arguments, values and errors")
    record = _record(found)
    if as_json:
        print_json(record)
        return
    steps, failed, signals, children = (record.pop(name) for name in ("steps", "failed", "signals", "children"))
    record["attributes"] = ", ".join(f"{name}={value}" for name, value in found.attributes.items()) or None
    print_record({name: value for name, value in record.items() if value is not None}, False)
    print_gap()
    if found.count > len(steps):
        click.echo(f"The last {len(steps)} of {found.count} steps:", err=True)
    columns = ["step", "kind", "name", "state", "calls", "error", "began_at", "took", "message"]
    print_rows([*map(_told, found.steps, steps)], columns, False, "No step has begun.", spare=["message", "began_at"])
    for title, rows, names in (
        ("Calls that have failed:", failed, ["step", "number", "error", "text", "message"]),
        ("Signals:", signals, ["name", "step", "sent_at"]),
        ("Flows that it has called:", children, ["id", "name", "state", "waits", "error"]),
    ):
        if rows:
            print_gap()
            click.echo(title)
            print_rows(rows, names, False, "")


def _print_values(opened: Flows, key: str, as_json: bool) -> None:
    from emsworker.extending.values import PreviewDecoder
    from emsworker.flows.operating.admin import as_shown

    found, after = list[dict[str, Any]](), 0
    while part := opened.values(key, after):
        after = part[-1][0]
        for number, value, at in part:
            if as_json:
                shown, problem = as_shown(PreviewDecoder(), value)
                found.append({"number": number, "value": shown, "problem": problem, "emitted_at": at})
            else:
                click.echo(value.decode(errors="backslashreplace"))
    if as_json:
        print_json(found)


def _record(found: FlowDetail) -> dict[str, Any]:
    from emsworker.extending.values import PreviewDecoder
    from emsworker.flows.operating.admin import as_shown

    decoder = PreviewDecoder()
    (call, problem), (value, value_problem) = (as_shown(decoder, one) for one in (found.args, found.value))
    args, kwargs = call if _is_call(call) else (None, None)
    if call is not None and not _is_call(call):
        problem = "the arguments are not [args, kwargs]"
    return _row(found.flow) | {
        "parent": found.parent,
        "attributes": dict(found.attributes),
        "args": args,
        "kwargs": kwargs or None,
        "value": value,
        "problem": problem or value_problem,
        "error_text": found.error,
        "steps": [_step_row(one, decoder) for one in found.steps],
        "failed": [_renamed(asdict(one)) for one in found.failed],
        "signals": [asdict(one) for one in found.signals],
        "children": [_row(one) for one in found.children],
    }


def _renamed(row: dict[str, Any]) -> dict[str, Any]:
    text, kind = row.pop("error"), row.pop("error_type")
    return row | {"error": kind, "text": text}


def _is_call(body: Any) -> bool:
    return isinstance(body, list) and [type(one) for one in body] == [list, dict]


def _step_row(step: StepEntry, decoder: PreviewDecoder) -> dict[str, Any]:
    from emsworker.flows.operating.admin import as_shown

    row = _renamed(asdict(step))
    row["value"], row["problem"] = as_shown(decoder, step.value)
    return {"step": row.pop("number"), **row}


def _told(step: StepEntry, row: dict[str, Any]) -> dict[str, Any]:
    """Return a step for people."""
    from emsworker.extending.values import format_duration

    took = None if step.ended_at is None else round((step.ended_at - step.began_at).total_seconds(), 3)
    until = "" if step.due_at is None or took is not None else f"until {step.due_at:%Y-%m-%d %H:%M:%S}"
    calls = f"{step.total - step.pending} of {step.total}" if step.total else None
    return row | {
        "calls": calls if not step.failed else f"{calls}, {step.failed} failed",
        "took": until or (None if took is None else format_duration(took)),
    }


_ids = click.argument("ids", metavar="[ID]...", nargs=-1)
_many_options = together(
    _ids,
    click.option("--all", "everything", is_flag=True, help="All flows, or all that the other options select."),
    _filter_options,
    click.option("--dry-run", is_flag=True, help="With --all: only count them."),
    yes_option,
    common_options,
)


@flows.command()
@_many_options
def cancel(ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Cancel flows that have not ended, and those that they have called.

    A step that runs goes on to its end; nothing is run after it, and nothing is undone. IDs are ids of flows; - reads
    them from standard input, one on each line.
    """
    given["states"] = given["states"] or ("ready", "running", "waiting")
    _change("Cancel", "Cancelled", lambda opened: opened.cancel, ids, everything, dry_run, yes, as_json, given)


@flows.command()
@_many_options
@click.option(
    "--from", "step", metavar="STEP", help="Run again from this step on, a number or a name, and forget what it gave."
)
def retry(
    ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, as_json: bool, step: str | None, **given: Any
) -> None:
    """Run flows again that have failed, or were cancelled, from where they ended; finished steps keep their values.

    With --all, those that have failed, unless --state says otherwise. --all leaves out flows that were called by
    another one, because they are run again with their caller, and flows whose steps were undone, because they are over.
    IDs are ids of flows; - reads them from standard input, one on each line.
    """
    given["states"] = given["states"] or ("failed",)

    def work(opened: Flows) -> Callable[[str], bool]:
        return lambda key: opened.retry(key, step)

    _change("Retry", "Retried", work, ids, everything, dry_run, yes, as_json, given, roots=True, undone=False)


@flows.command()
@_many_options
def delete(ids: tuple[str, ...], everything: bool, dry_run: bool, yes: bool, as_json: bool, **given: Any) -> None:
    """Delete flows that have ended, with all that is kept of them; their ids are free from then on.

    IDs are ids of flows; - reads them from standard input, one on each line.
    """
    given["states"] = given["states"] or ("done", "failed", "cancelled")
    _change("Delete", "Deleted", lambda opened: opened.delete, ids, everything, dry_run, yes, as_json, given)


def _change(
    ask: str,
    done: str,
    work_of: Callable[[Flows], Callable[[str], bool]],
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    given: dict[str, Any],
    **more: Any,
) -> None:
    """Change the flows that are named, or all that are selected, and report it."""
    from emsworker.flows.operating.admin import Flows, change_all, count_flow

    _check_choice(ids, everything)
    stream = open_stream()
    opened = _opened(stream)
    only = _filter_of(stream, given, **more)
    by_id = bool(ids)  # an input without a line names no flow, which is not all of them
    if ids == ("-",):
        ids = tuple(line.strip() for line in sys.stdin if line.strip())
    ids = tuple(dict.fromkeys(ids))
    count, capped = (len(ids), False) if by_id else _count(opened, only)
    told = f"{'more than ' if capped else ''}{counted(count, 'flow')}"
    if dry_run:
        print_done({"would_be_" + done.lower(): count, "capped": capped}, f"It would {ask.lower()} {told}.", as_json)
        return
    if count and (everything or ask == "Delete"):
        confirm(f"{ask} {told}?", yes)
    if by_id and not ids:
        print_done({done.lower(): 0, "refused": {}}, f"{done} 0 flows: no id was given.", as_json)
        return
    target = ", ".join(ids) if by_id else _text_of(only)
    errors: Errors = {}
    with stream.recording(
        f"{ask.lower()} flows" if len(ids) != 1 else f"{ask.lower()} flow", target, count_flow
    ) as database:
        work = work_of(Flows(database))
        if by_id:
            named, errors = each_of(ids, partial(_change_named, opened, work))
            changed, refused = len(named), {key: str(error) for key, error in errors.items()}
        else:
            with progress(f"{ask} them", None if capped else count) as bar:
                changed, refused = change_all(Flows(database), only, work, bar.update)
    print_done({done.lower(): changed, "refused": refused}, f"{done} {counted(changed, 'flow')}.", as_json)
    end_with(errors)
    _tell_left(refused)


def _check_choice(ids: tuple[str, ...], everything: bool) -> None:
    """Check that flows are named, or chosen by filters, and not both.

    Raises:
        UsageError: they are not.
    """
    if everything == bool(ids):
        raise click.UsageError("Name flows or --all, not both." if ids else "Name flows, or --all.")
    selected = click.get_current_context().get_parameter_source
    if ids and any(
        selected(name) is not click.core.ParameterSource.DEFAULT
        for name in ("states", "name", "waits", "error", "attributes", "since", "until", "dry_run")
    ):
        raise click.UsageError("--state, --name and the other filters, and --dry-run, select among --all.")


def _change_named(flows: Flows, work: Callable[[str], bool], key: str) -> None:
    """Change a flow that was named.

    Raises:
        EmsError: there is none, or its state is not one for that.
    """
    from emsworker.extending.errors import EmsError

    if not work(key):
        raise EmsError(f"flow {key!r} is {flows.find(key).state}; it is left as it is")


def _tell_left(refused: dict[str, str]) -> None:
    """Name the flows that were left as they are.

    Raises:
        Exit: there are any.
    """
    for key, why in list(refused.items())[:_MOST_SHOWN]:
        click.echo(f"Left as it is: {key}: {why}", err=True)
    if refused:
        left = len(refused)
        click.echo(f"{counted(left, 'flow')} {'is left as it is' if left == 1 else 'are left as they are'}.", err=True)
        raise click.exceptions.Exit(1)


def _count(opened: Flows, only: FlowFilter) -> tuple[int, bool]:
    count = 0
    for _ in opened.each(only):
        if count == _MOST_COUNTED:
            return count, True
        count += 1
    return count, False


def _text_of(only: FlowFilter) -> str:
    """Return a filter for the audit."""
    words = {
        "state": "|".join(only.states),
        "name": only.name,
        "waits": only.waits,
        "error": only.error,
        "since": only.since and f"{only.since:%Y-%m-%d %H:%M:%S}",
        "until": only.until and f"{only.until:%Y-%m-%d %H:%M:%S}",
        **only.attributes,
    }
    return ", ".join(f"{name} {value}" for name, value in words.items() if value)


@flows.command()
@click.argument("id_", metavar="ID")
@click.argument("name")
@click.argument("value", required=False)
@common_options
def signal(id_: str, name: str, value: str | None, as_json: bool) -> None:
    """Give the flow ID the signal NAME, with VALUE, which is JSON; without one it is null.

    A flow that does not wait for it yet finds it when it does.
    """
    from emsworker.flows.operating.admin import Flows, count_given

    try:
        decoded = None if value is None else json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not JSON: {error}; a text stands in quotes: '\"yes\"'.") from None
    stream = open_stream()
    _opened(stream)
    with stream.recording("signal flow", f"{id_} {name}", count=count_given) as database:
        Flows(database).signal(id_, name, decoded)
    print_done({"id": id_, "signal": name}, f"Gave {id_} the signal {name}.", as_json)
