"""``ems alarms``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from emsworker.extending.console import (
    DURATION,
    as_far_as_allowed,
    changes_of,
    common_options,
    complete_groups,
    complete_topics,
    confirm,
    delete_named,
    duration_option,
    first_of,
    most_option,
    open_stream,
    print_done,
    print_record,
    print_rows,
    read_duration,
    stream_options,
    yes_option,
)
from emsworker.extending.declaration import measures

if TYPE_CHECKING:
    from emsworker.extending.administration import Watched
    from emsworker.extending.console import OpenStream
    from emsworker.extending.values import Rule, Silence


@click.group()
@stream_options
def alarms() -> None:
    """Create, list, test, silence and delete the rules of alarms.

    The leading beat measures the groups by them. An alarm goes to its log, and to the receivers of the rule: once when
    it fires, once when it is resolved, and in between at the intervals of --repeat.
    """


def _about(rule: Rule) -> dict[str, Any]:
    from emsworker.extending.settings import redact

    return {
        "alarm": rule.name,
        "on": rule.metric.value,
        "above": rule.above,
        "for_s": rule.for_s,
        "within_s": rule.within_s,
        "least": rule.least,
        "topic": rule.topic,
        "group": rule.group,
        "repeat_s": rule.repeat_s,
        "webhook": redact(rule.webhook) if rule.webhook is not None else None,
        "slack": _host(rule.slack),
        "alertmanager": redact(rule.alertmanager) if rule.alertmanager is not None else None,
        "command": rule.command,
    }


def _host(url: str | None) -> str | None:
    """Show a URL whose path is a secret."""
    from urllib.parse import urlsplit

    return None if url is None else f"{urlsplit(url).scheme}://{urlsplit(url).hostname}/***"


def _row(watched: Watched) -> dict[str, Any]:
    firing = [
        {"topic": one.topic, "group": one.group, "value": one.value, "fired_at": one.fired_at} for one in watched.firing
    ]
    return _about(watched.rule) | {"firing": len(firing), "alarms": firing}


@alarms.command("list")
@most_option
@common_options
def list_(limit: int, as_json: bool) -> None:
    """List the rules, and for how many groups each fires at present; JSON names them."""
    alarms = open_stream().admin().alarms
    found = as_far_as_allowed(lambda details: alarms.list(addresses=details), "receivers")
    rows = [_row(watched) for watched in first_of(found, limit, "alarm", "that are first by name")]
    receivers = [name for name in ("webhook", "slack", "alertmanager", "command") if any(row[name] for row in rows)]
    columns = ["alarm", "on", "above", "for_s", "topic", "group", "firing", *receivers]
    empty = "There are no alarms; `ems alarms create NAME` makes one."
    print_rows(rows, columns, as_json, empty, spare=receivers[::-1])


def _read_above(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Read a threshold in the unit of the metric of ``--on``."""
    from emsworker.extending.values import find_metric

    metric = find_metric(ctx.params["on"])
    try:
        return float(metric.threshold.read(value))
    except ValueError as error:
        raise click.BadParameter(f"{metric} above {value!r}: {error}.") from None


def _measured_by_extensions() -> dict[str, str]:
    """Return what extensions measure, each with its line of help."""
    return {name: measure.help for _, name, measure in measures()}


def _about_measures(command: click.Command) -> click.Command:
    """Add what extensions measure to the help of a command."""
    lines = [f"{name:<12} {help}" for name, help in _measured_by_extensions().items()]
    command.help = (command.help or "").replace("MEASURES", "\n".join(lines))
    return command


def _warn_of_unknown(stream: OpenStream, topic: str | None, group: str | None) -> None:
    """Warn if there is no such topic or group: they may be created later, or be mistyped."""
    from emsworker.extending.errors import UnknownTopic

    if topic is None and group is None:
        return
    try:
        found = stream.admin().groups(topic)
    except UnknownTopic:
        click.echo(f"Warning: there is no topic {topic!r} yet; `ems topics list` shows those that exist.", err=True)
        return
    if group is not None and not any(one.name == group for _, one in found):
        of = "" if topic is None else f" of topic {topic!r}"
        click.echo(f"Warning: there is no group {group!r}{of} yet; `ems groups list` shows those that exist.", err=True)


@_about_measures
@alarms.command()
@click.argument("name")
@click.option(
    "--on",
    required=True,
    is_eager=True,  # --above is read in its unit
    type=click.Choice(
        [
            *("lag", "oldest", "retries", "dead", "no_consumer", "stuck", "error_rate", "refused", "locked"),
            *("disk_full", *_measured_by_extensions()),
        ]
    ),
    help="What is measured of each group; of the whole stream: refused, a count of rows; locked, disk_full, a time.",
)
@click.option(
    "--above",
    default="0",
    show_default=True,
    callback=_read_above,
    metavar="VALUE",
    help="The value above which it is an alarm: a count like 100; a duration like 5m (oldest, "
    "stuck); a share like 5% (error_rate).",
)
@click.option(
    "--for", "for_s", metavar="DURATION", callback=read_duration, help=f"Fire after this time only: {DURATION}."
)
@click.option(
    "--within",
    "within_s",
    metavar="DURATION",
    callback=read_duration,
    help="dead, error_rate: the period that counts; 5m.",
)
@click.option(
    "--least", type=int, metavar="N", help="error_rate: the fewest attempts in the period that make a rate; 10."
)
@click.option("--topic", shell_complete=complete_topics, help="Only groups of this topic.")
@click.option(
    "--group",
    shell_complete=complete_groups,
    help="Only groups of this name; of what an extension measures: only what has this name.",
)
@click.option("--webhook", metavar="URL", help="POST the alarm there, as JSON.")
@click.option("--slack", metavar="URL", help="POST a line there: an incoming webhook of Slack, or one like it.")
@click.option("--alertmanager", metavar="URL", help="Send it to this Alertmanager, like http://alertmanager:9093.")
@click.option(
    "--repeat",
    "repeat_s",
    metavar="DURATION",
    callback=read_duration,
    help=f"Notify again after this time while it fires; by default once only: {DURATION}.",
)
@click.option("--command", metavar="COMMAND", help="Run this, with the alarm on standard input, as JSON.")
@click.option("--replace", is_flag=True, help="Replace the rule of that name.")
@common_options
def create(name: str, on: str, replace: bool, as_json: bool, **settings: Any) -> None:
    """Create the alarm NAME.

    \b
    lag          messages that are unclaimed, or claimed and unfinished
    oldest       seconds since the oldest unfinished message was born
    retries      messages that wait for a retry
    dead         messages that became dead letters within --within
    no_consumer  messages that wait while no client works for the group
    stuck        seconds for which a claim has made no progress
    error_rate   share of the attempts within --within that failed
    MEASURES

    A command is run by the leading beat, without a shell, and only if the setting alarm_commands
    (EMS_ALARM_COMMANDS) of that machine names its program.
    """  # noqa: D301 - click wants the character itself
    stream = open_stream()
    rule = stream.admin().alarms.create(name, on=on, replace=replace, **changes_of(settings))
    _warn_of_unknown(stream, rule.topic, None if on in _measured_by_extensions() else rule.group)
    print_record(_about(rule), as_json)


@alarms.command()
@click.argument("name")
@yes_option
@common_options
def delete(name: str, yes: bool, as_json: bool) -> None:
    """Delete the alarm NAME with its state; its receivers get no resolution."""
    delete_named("alarm", name, open_stream().admin().alarms.delete, yes, as_json)


@alarms.command()
@click.argument("name")
@common_options
@click.pass_context
def test(ctx: click.Context, name: str, as_json: bool) -> None:
    """Send a test to the receivers of the alarm NAME, from here; exit code 1 if a delivery fails."""
    from emsworker.alarms.trial import send_test  # and HTTP, which the other commands need not

    stream = open_stream()
    found = send_test(stream.database(), name, stream.settings.alarm_commands, stream.settings.alarm_secret)
    rows = [{"target": target, "ok": problem is None, "problem": problem} for target, problem in found.items()]
    print_rows(rows, ["target", "ok", "problem"], as_json, "It has no receiver: it only logs.")
    ctx.exit(1 if any(found.values()) else 0)


@alarms.command()
@click.argument("name", required=False)
@duration_option("--for", "for_s", help="For how long")
@click.option("--topic", shell_complete=complete_topics, help="Only for groups of this topic.")
@click.option("--group", shell_complete=complete_groups, help="Only for groups of this name.")
@click.option("--reason", default="", help="Shown in the list of silences.")
@yes_option
@common_options
def silence(
    name: str | None, for_s: float | None, topic: str | None, group: str | None, reason: str, yes: bool, as_json: bool
) -> None:
    """Keep the alarm NAME, or all, from their receivers for some time.

    They fire and are resolved all the same. One that still fires at the end is sent then. Without a name, a topic or a
    group every alarm is silenced, after a question.
    """
    if for_s is None:
        raise click.UsageError("Say for how long: --for 2h.")
    if name is None and topic is None and group is None:
        confirm("Silence all alarms of all topics and groups?", yes)
    stream = open_stream()
    made = stream.admin().alarms.silence(name, for_s=for_s, topic=topic, group=group, reason=reason)
    _warn_of_unknown(stream, made.topic, made.group)
    print_record(_silence_row(made), as_json)


def _silence_row(one: Silence) -> dict[str, Any]:
    return {
        "silence": one.silence_id,
        "alarm": one.rule,
        "topic": one.topic,
        "group": one.group,
        "until": one.ends_at,
        "reason": one.reason,
    }


@alarms.command()
@most_option
@common_options
def silences(limit: int, as_json: bool) -> None:
    """List the silences that have not ended."""
    found = first_of([*open_stream().admin().alarms.silences()], limit, "silence", "that are oldest")
    rows = [_silence_row(one) for one in found]
    print_rows(rows, ["silence", "alarm", "topic", "group", "until", "reason"], as_json, "There are no silences.")


@alarms.command()
@click.argument("silence", type=click.IntRange(1, (1 << 63) - 1))
@common_options
def unsilence(silence: int, as_json: bool) -> None:
    """End the silence of this number; alarms that fire are sent then."""
    open_stream().admin().alarms.unsilence(silence)
    print_done({"unsilenced": silence}, f"Ended the silence {silence}.", as_json)
